// Short rows, of which a block takes several: a power of two of its threads take one each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/launch.cuh"

namespace maestro::kernels {

inline constexpr int kLaneThreads = 256;  ///< of a block whose rows are shared out like this

struct Lanes {
    int shift = 0;  ///< 2^shift threads take a row; at most a block, at most a warp where they sum

    __host__ __device__ int count() const { return 1 << shift; }
    __device__ int lane() const { return static_cast<int>(threadIdx.x) & (count() - 1); }
    /// Of the grid.
    __device__ std::int64_t row() const {
        return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) >> shift;
    }
    std::int64_t blocks(std::int64_t rows) const { return divide_up(rows << shift, kLaneThreads); }
    __host__ __device__ int rows_of_block() const { return kLaneThreads >> shift; }

    /// Over the lanes of a row, on all of them. The whole warp calls it.
    template <class A>
    __device__ __forceinline__ A sum(A value) const {
        for (int distance = count() / 2; distance > 0; distance /= 2)
            value += __shfl_xor_sync(0xffffffffu, value, distance);
        return value;
    }
};

/// For rows of so many items, each of which one thread takes.
inline Lanes lanes_for(std::int64_t items, int most = kLaneThreads) {
    Lanes lanes;
    while (lanes.count() < items && lanes.count() < most) ++lanes.shift;
    return lanes;
}

}  // namespace maestro::kernels
