// Cosine and sine in double precision. CUDA's cos() and sin() reduce angles beyond 2^31 with a table in local
// memory, which every thread would pay for. No position reaches such an angle.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>

namespace maestro::kernels {

/// Accurate to about 1e-16 for |angle| < 2^31. Subtracts multiples of pi/2, which is stored as the sum of
/// three doubles (Cody-Waite range reduction). The remainder is at most pi/4 in magnitude, so that short
/// Taylor series suffice.
__device__ __forceinline__ void cos_sin(double angle, double& cosine, double& sine) {
    const double turns = rint(angle * 0.63661977236758134);
    double remainder = fma(-turns, 1.5707963267948966, angle);
    remainder = fma(-turns, 6.123233995736766e-17, remainder);
    remainder = fma(-turns, -1.4973849048591833e-33, remainder);
    const double square = remainder * remainder;
    double even = 1, odd = 1;
#pragma unroll
    for (int k = 16; k > 0; k -= 2) even = fma(-square * (1.0 / (k * (k - 1))), even, 1.0);
#pragma unroll
    for (int k = 17; k > 1; k -= 2) odd = fma(-square * (1.0 / (k * (k - 1))), odd, 1.0);
    odd *= remainder;
    const std::int64_t quarter = static_cast<std::int64_t>(turns) & 3;
    cosine = quarter % 2 == 0 ? even : odd;
    sine = quarter % 2 == 0 ? odd : even;
    if (quarter == 1 || quarter == 2) cosine = -cosine;
    if (quarter >= 2) sine = -sine;
}

}  // namespace maestro::kernels
