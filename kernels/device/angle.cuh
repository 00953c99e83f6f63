// Cosine and sine in double. CUDA's own keep a table in local memory for angles beyond 2^31, which no
// position reaches.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>

namespace maestro::kernels {

/// To about 1e-16, for |angle| < 2^31. Quarter turns are taken off in three parts of pi/2 (Cody and Waite),
/// which leaves |rest| <= pi/4, where Taylor's series are short.
__device__ __forceinline__ void cos_sin(double angle, double& cosine, double& sine) {
    const double turns = rint(angle * 0.63661977236758134);
    double rest = fma(-turns, 1.5707963267948966, angle);
    rest = fma(-turns, 6.123233995736766e-17, rest);
    rest = fma(-turns, -1.4973849048591833e-33, rest);
    const double square = rest * rest;
    double even = 1, odd = 1;
#pragma unroll
    for (int k = 16; k > 0; k -= 2) even = fma(-square * (1.0 / (k * (k - 1))), even, 1.0);
#pragma unroll
    for (int k = 17; k > 1; k -= 2) odd = fma(-square * (1.0 / (k * (k - 1))), odd, 1.0);
    odd *= rest;
    const std::int64_t quarter = static_cast<std::int64_t>(turns) & 3;
    cosine = quarter % 2 == 0 ? even : odd;
    sine = quarter % 2 == 0 ? odd : even;
    if (quarter == 1 || quarter == 2) cosine = -cosine;
    if (quarter >= 2) sine = -sine;
}

}  // namespace maestro::kernels
