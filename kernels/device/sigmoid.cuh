// sigmoid(x) = 1 / (1 + exp(-x)). Returns 0 and 1 for large |x|, and NaN for NaN.
#pragma once

#include <cuda_runtime.h>

namespace maestro::kernels {

/// Accurate to a few ulp. An exact division would make these memory-bound kernels compute-bound.
__device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + expf(-x));  // 0 for divisors above 2^126
}
__device__ __forceinline__ double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

}  // namespace maestro::kernels
