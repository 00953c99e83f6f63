// What the losses have in common: which rows count, and the limits of logits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "kernels/device/number.cuh"

namespace maestro::kernels {

/// Below all logits, and finite: minus infinity against it is no NaN.
template <class A>
inline constexpr A kLowest = std::numeric_limits<A>::lowest();

/// What rows of logits are held against. `first` is the token of the first column.
struct Wanted {
    const std::int32_t* targets;
    const float* weights;
    std::int64_t first;

    Wanted(const Array& targets_, const Array& weights_, std::int64_t first_)
        : targets(targets_.as<std::int32_t>()), weights(weights_.as<float>()), first(first_) {}

    __device__ bool counts(std::int64_t row) const { return targets[row] >= 0 && weights[row] != 0.0f; }
    /// The target's column: not one of these where another rank has it.
    __device__ std::int64_t column(std::int64_t row) const { return targets[row] - first; }
};

/// K packs of a row, a stride apart, under way at once: a row that is longer than the caches has to come
/// fast. Minus infinity where it has ended.
template <class A, int K, int N>
__device__ __forceinline__ void read(const A* row, std::int64_t c, std::int64_t stride, std::int64_t columns,
                                     A (&values)[K][N]) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (c + k * stride < columns) {
            load<A, N>(row + c + k * stride, values[k]);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) values[k][i] = -std::numeric_limits<A>::infinity();
        }
    }
}

/// The largest of `values` and `top`; NaN is none.
template <class A, int K, int N>
__device__ __forceinline__ A largest(const A (&values)[K][N], A top) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < N; ++i) top = values[k][i] > top ? values[k][i] : top;
    return top;
}

/// Where a thread that goes from `first` on by `step` comes to its end, to go back from there; negative where
/// it has nothing.
__device__ __forceinline__ std::int64_t last_column(std::int64_t first, std::int64_t step,
                                                    std::int64_t columns) {
    return first < columns ? first + (columns - 1 - first) / step * step : -1;
}

/// By a block: zeros.
template <class A, int N>
__device__ __forceinline__ void clear(A* row, std::int64_t columns) {
    const A nothing[N] = {};
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) store<A, N>(nothing, row + c);
}

}  // namespace maestro::kernels
