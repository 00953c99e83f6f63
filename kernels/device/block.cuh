// Reductions over a warp and over a block. Values are combined in a fixed tree, so that floating-point sums
// are the same in every run.
#pragma once

#include <cuda_runtime.h>

namespace maestro::kernels {

/// The block's dynamic shared memory. Its size is an argument of the launch.
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

/// Reduces over the 32 lanes of a warp, all of which must call it. All lanes get the result.
template <class A, class Combine>
__device__ __forceinline__ A warp_reduce(A value, Combine combine) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

/// Reduces over the threads of a block, all of which must call it. All threads get the result. The block must
/// consist of whole warps. `smem`: 33 elements of shared memory, which may be reused as soon as this returns.
/// `identity`: the identity element of `combine`.
template <class A, class Combine>
__device__ __forceinline__ A block_reduce(A value, Combine combine, A identity, A* smem) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
              warps = static_cast<int>(blockDim.x / 32);
    value = warp_reduce(value, combine);
    if (warps == 1) return value;
    if (lane == 0) smem[warp] = value;
    __syncthreads();
    if (warp == 0) {
        const A all = warp_reduce(lane < warps ? smem[lane] : identity, combine);
        if (lane == 0) smem[32] = all;
    }
    __syncthreads();
    value = smem[32];
    __syncthreads();  // all threads have read the result before the caller overwrites it
    return value;
}

template <class A>
inline constexpr std::size_t kBlockReduceBytes = 33 * sizeof(A);  ///< bytes of block_reduce's `smem`

}  // namespace maestro::kernels
