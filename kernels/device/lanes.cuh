// Kernels on short rows: a block processes several rows, each with a power of two of its threads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/launch.cuh"

namespace maestro::kernels {

inline constexpr int kLaneThreads = 256;  ///< block size of kernels that use Lanes

struct Lanes {
    int shift = 0;  ///< 2^shift threads per row: at most a block, or at most a warp where sum() is used

    __host__ __device__ int count() const { return 1 << shift; }
    __device__ int lane() const { return static_cast<int>(threadIdx.x) & (count() - 1); }
    /// The row of this thread, over the whole grid.
    __device__ std::int64_t row() const {
        return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) >> shift;
    }
    std::int64_t blocks(std::int64_t rows) const { return divide_up(rows << shift, kLaneThreads); }
    __host__ __device__ int rows_of_block() const { return kLaneThreads >> shift; }

    /// Sums over the lanes of a row; all of them get the sum. All lanes of the warp must call it, because the
    /// shuffles name them all.
    template <class A>
    __device__ __forceinline__ A sum(A value) const {
        for (int distance = count() / 2; distance > 0; distance /= 2)
            value += __shfl_xor_sync(0xffffffffu, value, distance);
        return value;
    }
};

/// Lanes for rows of `items` items, one item per thread and iteration.
inline Lanes lanes_for(std::int64_t items, int most = kLaneThreads) {
    Lanes lanes;
    while (lanes.count() < items && lanes.count() < most) ++lanes.shift;
    return lanes;
}

}  // namespace maestro::kernels
