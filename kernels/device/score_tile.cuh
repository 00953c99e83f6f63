// The matrix multiplications of attention for one tile of scores. A block of 16 x 16 threads holds the tile
// in registers: thread (y, x) has the rows y * kPerThread + i and the columns x + 16 * j. Operands are staged
// in shared memory slice by slice, so that heads of any size fit.
#pragma once

#include "kernels/device/block.cuh"
#include "kernels/device/head_rows.cuh"

namespace maestro::kernels {

/// A: the arithmetic type. Dim: the largest head size.
template <class A, int Dim>
struct ScoreTile {
    static constexpr int kThreads = 256;
    static constexpr int kPerThread = sizeof(A) == 4 ? 4 : 2;  ///< rows, and columns, per thread
    static constexpr int kTileSize = 16 * kPerThread;
    static constexpr int kVector = kVectorSize<A>;
    static constexpr int kColumns = Dim / 16;  ///< elements of a head per thread, for each of its rows

    // The strides have one vector of padding, so that the 16 rows which a half warp reads at once lie in
    // different banks of shared memory.
    static constexpr int kSlice = 32, kSliceStride = kSlice + kVector;
    static constexpr int kWeightStride = kTileSize + kVector;
    static constexpr int kRowsPerPass = 1024 * kPerThread / Dim;  ///< value rows staged at a time
    static constexpr int kStagingSize = 2 * kTileSize * kSliceStride;
    static_assert(kRowsPerPass * Dim <= kStagingSize && kRowsPerPass % kVector == 0);
    static constexpr std::size_t kShared = (kStagingSize + kTileSize * kWeightStride) * sizeof(A);

    __device__ ScoreTile()
        : x(static_cast<int>(threadIdx.x % 16)),
          first(static_cast<int>(threadIdx.x / 16) * kPerThread),
          staging(shared_memory<A>()),
          weights(staging + kStagingSize) {}

    /// to = left * right^T, summed over the elements of a head. Rows beyond the ends of `left` and `right`
    /// give zeros.
    template <class T>
    __device__ __forceinline__ void scores(const HeadRows<const T>& left, const HeadRows<const T>& right,
                                           A (&to)[kPerThread][kPerThread]) const {
        A* const rights = staging + kTileSize * kSliceStride;
#pragma unroll
        for (int i = 0; i < kPerThread; ++i)
#pragma unroll
            for (int j = 0; j < kPerThread; ++j) to[i][j] = 0;
        for (int slice = 0; slice < left.dim; slice += kSlice) {
            __syncthreads();  // all threads have read the previous slice
            load_tile<kTileSize, kSlice, kSliceStride>(left, 0, slice, staging);
            load_tile<kTileSize, kSlice, kSliceStride>(right, 0, slice, rights);
            __syncthreads();
#pragma unroll 1
            for (int d = 0; d < kSlice; d += kVector) {
                A lefts[kPerThread][kVector];
#pragma unroll
                for (int i = 0; i < kPerThread; ++i)
                    load<A, kVector>(staging + (first + i) * kSliceStride + d, lefts[i]);
#pragma unroll
                for (int j = 0; j < kPerThread; ++j) {
                    A right_values[kVector];
                    load<A, kVector>(rights + (x + 16 * j) * kSliceStride + d, right_values);
#pragma unroll
                    for (int i = 0; i < kPerThread; ++i)
#pragma unroll
                        for (int e = 0; e < kVector; ++e) to[i][j] += lefts[i][e] * right_values[e];
                }
            }
        }
    }

    /// Stores the attention weights for multiply_rows(). The same half warp writes and reads a row, so that a
    /// barrier of the warp is enough.
    __device__ __forceinline__ void store_weights(const A (&from)[kPerThread][kPerThread]) const {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kPerThread; ++i)
#pragma unroll
            for (int j = 0; j < kPerThread; ++j)
                weights[(first + i) * kWeightStride + x + 16 * j] = from[i][j];
    }

    /// to += weights * rows, with the weights that store_weights() stored last. Weights beyond the end of
    /// `rows` must be zero.
    template <class T>
    __device__ __forceinline__ void multiply_rows(const HeadRows<const T>& rows,
                                                  A (&to)[kPerThread][kColumns]) const {
        for (int begin = 0; begin < rows.count; begin += kRowsPerPass) {
            __syncthreads();  // all threads have read the staged rows before others replace them
            load_tile<kRowsPerPass, Dim, Dim>(rows, begin, 0, staging);
            __syncthreads();
#pragma unroll 1
            for (int r = 0; r < kRowsPerPass; r += kVector) {
                A weight[kPerThread][kVector];
#pragma unroll
                for (int i = 0; i < kPerThread; ++i)
                    load<A, kVector>(weights + (first + i) * kWeightStride + begin + r, weight[i]);
#pragma unroll
                for (int e = 0; e < kVector; ++e)
#pragma unroll
                    for (int c = 0; c < kColumns; c += kVector) {
                        A value[kVector];
                        load<A, kVector>(staging + (r + e) * Dim + 16 * c + x * kVector, value);
#pragma unroll
                        for (int i = 0; i < kPerThread; ++i)
#pragma unroll
                            for (int f = 0; f < kVector; ++f) to[i][c + f] += weight[i][e] * value[f];
                    }
            }
        }
    }

    /// Stores scale * sums as row i of this thread.
    template <class O>
    __device__ __forceinline__ void store_row(const A (&sums)[kColumns], A scale, const HeadRows<O>& to,
                                              int i) const {
        if (first + i >= to.count) return;
#pragma unroll
        for (int c = 0; c < kColumns; c += kVector) {
            A value[kVector];
#pragma unroll
            for (int f = 0; f < kVector; ++f) value[f] = sums[c + f] * scale;
            store_vector(value, to, first + i, 16 * c + x * kVector);
        }
    }

    /// Reduces over the 16 threads that hold the same rows. All of them get the result.
    template <class Combine>
    static __device__ __forceinline__ A row_reduce(A value, Combine combine) {
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2)
            value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
        return value;
    }

    int x, first;
    A *staging, *weights;
};

/// Scores are scaled by log2(e), because a GPU computes exponentials of base 2 (ex2).
template <class A>
inline constexpr A kLog2E = static_cast<A>(1.44269504088896340736);
template <class A>
inline constexpr A kLog2 = static_cast<A>(0.693147180559945309417);

}  // namespace maestro::kernels
