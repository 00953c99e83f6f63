// Parts that the losses have in common: targets, and access to rows of logits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

/// Initial value of a running maximum. It is finite, because the difference of two infinities would be NaN.
template <class A>
inline constexpr A kLowest = std::numeric_limits<A>::lowest();

/// Target token and loss weight of each row. `first` is the token of the first column, where ranks split the
/// vocabulary.
struct Targets {
    const std::int32_t* targets;
    const float* weights;
    std::int64_t first;

    Targets(const Array& targets_, const Array& weights_, std::int64_t first_)
        : targets(targets_.as<std::int32_t>()), weights(weights_.as<float>()), first(first_) {}

    __device__ bool has_loss(std::int64_t row) const { return targets[row] >= 0 && weights[row] != 0.0f; }
    /// The target's column. It lies outside [0, columns) where another rank has it.
    __device__ std::int64_t column(std::int64_t row) const { return targets[row] - first; }
};

/// Loads K vectors of a row, `stride` elements apart. The K loads are independent, so that they are in flight
/// together: rows of logits exceed the caches, and one load at a time would not use the memory's bandwidth.
/// Elements beyond the row's end become minus infinity. A is Accumulate<T>.
template <class T, class A, int K, int N>
__device__ __forceinline__ void load_vectors(const T* row, std::int64_t c, std::int64_t stride,
                                             std::int64_t columns, A (&values)[K][N]) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (c + k * stride < columns) {
            load<T, N>(row + c + k * stride, values[k]);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) values[k][i] = -std::numeric_limits<A>::infinity();
        }
    }
}

/// The maximum of `values` and `top`. NaNs are ignored.
template <class A, int K, int N>
__device__ __forceinline__ A max_of(const A (&values)[K][N], A max) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < N; ++i) max = values[k][i] > max ? values[k][i] : max;
    return max;
}

/// The last column below `columns` of those that a thread visits from `first` on by `step`; negative if it
/// visits none. A backward loop starts there.
__device__ __forceinline__ std::int64_t last_column(std::int64_t first, std::int64_t step,
                                                    std::int64_t columns) {
    return first < columns ? first + (columns - 1 - first) / step * step : -1;
}

/// Sets a row to zero, by all threads of a block.
template <class T, int N>
__device__ __forceinline__ void fill_zero(T* row, std::int64_t columns) {
    const Accumulate<T> zeros[N] = {};
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) store<T, N>(zeros, row + c);
}

}  // namespace maestro::kernels
