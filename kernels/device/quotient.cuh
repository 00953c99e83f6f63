// Division of offsets.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace maestro::kernels {

/// i / by. A 64-bit division takes several times as long as a 32-bit one.
__device__ __forceinline__ std::int64_t quotient(std::int64_t i, std::int64_t by) {
    if ((i | by) >> 32 == 0) return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(by);
    return i / by;
}

}  // namespace maestro::kernels
