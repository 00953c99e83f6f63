// 1 / (1 + exp(-x)): 0 and 1 far out, NaN of NaN.
#pragma once

#include <cuda_runtime.h>

namespace maestro::kernels {

/// Off by a few units in the last place, since an exact division would take longer than memory does.
__device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + expf(-x));  // 0 from 2^126 on, where the true quotient is almost that
}
__device__ __forceinline__ double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

}  // namespace maestro::kernels
