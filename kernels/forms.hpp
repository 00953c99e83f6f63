// Which form of a kernel runs. Every kernel has a portable form, kernels/NAME.cu, which any compiler compiles
// and the simulated runtime executes. A few have a second one, kernels/nvcc/NAME.cu, for nvcc alone.
#pragma once

#include <cstdlib>
#include <string>

#include "base/error.hpp"

namespace maestro::kernels {

/// Whether the kernels of this build have their second forms, as those of maestro_kernels_nvcc do.
#ifdef MAESTRO_NVCC_FORMS
constexpr bool kNvccForms = true;
#else
constexpr bool kNvccForms = false;
#endif

/// Whether the environment variable MAESTRO_KERNEL_FORMS selects second forms: "nvcc". Portable ones run
/// where it is "portable" or not set. Throws Error(usage) for other values, and for "nvcc" where
/// the build has none (`available`).
inline bool use_nvcc_forms(bool available) {
    const char* const text = std::getenv("MAESTRO_KERNEL_FORMS");
    const std::string form = text == nullptr ? "portable" : text;
    if (form == "portable") return false;
    const std::string problem = "MAESTRO_KERNEL_FORMS is \"" + form + "\"";
    if (form != "nvcc") throw Error(ExitCode::usage, problem + ", and may be \"portable\" or \"nvcc\"");
    if (!available)
        throw Error(ExitCode::usage, problem + ", but nvcc did not compile the kernels of this program");
    return true;
}

}  // namespace maestro::kernels
