// The environment variable MAESTRO_KERNEL_FORMS.
#pragma once

#include <cstdlib>
#include <string>

#include "base/error.hpp"

namespace maestro {

/// Whether the environment selects the second forms of kernels (kernels/forms.hpp): MAESTRO_KERNEL_FORMS is
/// "nvcc". Portable ones run where it is "portable" or not set. Throws Error(usage) for other values.
inline bool nvcc_forms_selected() {
    const char* const text = std::getenv("MAESTRO_KERNEL_FORMS");
    const std::string form = text == nullptr ? "portable" : text;
    if (form != "portable" && form != "nvcc")
        throw Error(ExitCode::usage,
                    "MAESTRO_KERNEL_FORMS is \"" + form + "\", and may be \"portable\" or \"nvcc\"");
    return form == "nvcc";
}

}  // namespace maestro
