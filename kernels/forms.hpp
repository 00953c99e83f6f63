// Which form of a kernel runs. Every kernel has a portable form, kernels/NAME.cu, which any compiler compiles
// and the simulated runtime executes. A few have a second one, kernels/nvcc/NAME.cu, for nvcc alone.
#pragma once

#include "base/kernel_forms.hpp"

namespace maestro::kernels {

/// Whether the kernels of this build have their second forms, as those of maestro_kernels_nvcc do.
#ifdef MAESTRO_NVCC_FORMS
constexpr bool kNvccForms = true;
#else
constexpr bool kNvccForms = false;
#endif

/// Whether second forms run: where the environment selects them (nvcc_forms_selected()). Throws Error(usage)
/// where it does and the build has none (`available`).
inline bool use_nvcc_forms(bool available) {
    if (!nvcc_forms_selected()) return false;
    if (!available)
        throw Error(ExitCode::usage,
                    "MAESTRO_KERNEL_FORMS is \"nvcc\", but nvcc did not compile the kernels of this program");
    return true;
}

}  // namespace maestro::kernels
