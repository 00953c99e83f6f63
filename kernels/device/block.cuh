// Sums and maxima over a block, the same in every run: partners are fixed.
#pragma once

#include <cuda_runtime.h>

namespace maestro::kernels {

/// The block's shared memory, of the size that its launch asked for.
template <class T>
__device__ __forceinline__ T* shared_memory() {
    extern __shared__ __align__(16) unsigned char maestro_shared_memory[];
    return reinterpret_cast<T*>(maestro_shared_memory);
}

struct Sum {
    template <class A>
    __device__ A operator()(A x, A y) const {
        return x + y;
    }
};
struct Max {
    template <class A>
    __device__ A operator()(A x, A y) const {
        return x > y ? x : y;
    }
};

/// Over the 32 lanes of a warp, on all of them.
template <class A, class Combine>
__device__ __forceinline__ A over_warp(A value, Combine combine) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

/// Over the threads of a block of whole warps, on all of them. `room`: shared, 33 elements, which may be used
/// again at once. `empty`: what changes nothing.
template <class A, class Combine>
__device__ __forceinline__ A over_block(A value, Combine combine, A empty, A* room) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
              warps = static_cast<int>(blockDim.x / 32);
    value = over_warp(value, combine);
    if (warps == 1) return value;
    if (lane == 0) room[warp] = value;
    __syncthreads();
    if (warp == 0) {
        const A all = over_warp(lane < warps ? room[lane] : empty, combine);
        if (lane == 0) room[32] = all;
    }
    __syncthreads();
    value = room[32];
    __syncthreads();
    return value;
}

template <class A>
inline constexpr std::size_t kBlockRoom = 33 * sizeof(A);  ///< bytes of over_block's room

}  // namespace maestro::kernels
