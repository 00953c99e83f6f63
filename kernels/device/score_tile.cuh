// The products of attention for a tile of scores, which a block of 16 x 16 threads holds in registers: thread
// (y, x) has the rows y * kEach + i and the columns x + 16 * j. Operands pass through shared memory in parts,
// so that heads of any size fit.
#pragma once

#include "kernels/device/block.cuh"
#include "kernels/device/head_rows.cuh"

namespace maestro::kernels {

/// Of arithmetic type A, for heads of at most Dim elements.
template <class A, int Dim>
struct ScoreTile {
    static constexpr int kThreads = 256;
    static constexpr int kEach = sizeof(A) == 4 ? 4 : 2;  ///< rows and columns of a thread
    static constexpr int kSide = 16 * kEach;
    static constexpr int kPiece = kPack<A>;
    static constexpr int kColumns = Dim / 16;  ///< elements of a head that a thread sums up, for each row

    // A piece more than what is kept, so that 16 rows read at once lie in different banks.
    static constexpr int kPart = 32, kPartStride = kPart + kPiece;
    static constexpr int kWeightStride = kSide + kPiece;
    static constexpr int kMixed = 1024 * kEach / Dim;  ///< rows that are mixed at a time
    static constexpr int kRoom = 2 * kSide * kPartStride;
    static_assert(kMixed * Dim <= kRoom && kMixed % kPiece == 0);
    static constexpr std::size_t kShared = (kRoom + kSide * kWeightStride) * sizeof(A);

    __device__ ScoreTile()
        : x(static_cast<int>(threadIdx.x % 16)),
          first(static_cast<int>(threadIdx.x / 16) * kEach),
          room(shared_memory<A>()),
          weights(room + kRoom) {}

    /// to = left * right^T over the elements of a head; zeros beyond their rows.
    template <class T>
    __device__ __forceinline__ void scores(const HeadRows<const T>& left, const HeadRows<const T>& right,
                                           A (&to)[kEach][kEach]) const {
        A* const rights = room + kSide * kPartStride;
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
            for (int j = 0; j < kEach; ++j) to[i][j] = 0;
        for (int part = 0; part < left.dim; part += kPart) {
            __syncthreads();
            fill<kSide, kPart, kPartStride>(left, 0, part, room);
            fill<kSide, kPart, kPartStride>(right, 0, part, rights);
            __syncthreads();
#pragma unroll 1
            for (int d = 0; d < kPart; d += kPiece) {
                A own[kEach][kPiece];
#pragma unroll
                for (int i = 0; i < kEach; ++i) load<A, kPiece>(room + (first + i) * kPartStride + d, own[i]);
#pragma unroll
                for (int j = 0; j < kEach; ++j) {
                    A other[kPiece];
                    load<A, kPiece>(rights + (x + 16 * j) * kPartStride + d, other);
#pragma unroll
                    for (int i = 0; i < kEach; ++i)
#pragma unroll
                        for (int e = 0; e < kPiece; ++e) to[i][j] += own[i][e] * other[e];
                }
            }
        }
    }

    /// Every row of the weights is written and read by the same half of a warp.
    __device__ __forceinline__ void keep(const A (&from)[kEach][kEach]) const {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
            for (int j = 0; j < kEach; ++j) weights[(first + i) * kWeightStride + x + 16 * j] = from[i][j];
    }

    /// to += weights * rows, where what was kept last is zero beyond the rows.
    template <class T>
    __device__ __forceinline__ void mix(const HeadRows<const T>& rows, A (&to)[kEach][kColumns]) const {
        for (int begin = 0; begin < rows.count; begin += kMixed) {
            __syncthreads();
            fill<kMixed, Dim, Dim>(rows, begin, 0, room);
            __syncthreads();
#pragma unroll 1
            for (int r = 0; r < kMixed; r += kPiece) {
                A weight[kEach][kPiece];
#pragma unroll
                for (int i = 0; i < kEach; ++i)
                    load<A, kPiece>(weights + (first + i) * kWeightStride + begin + r, weight[i]);
#pragma unroll
                for (int e = 0; e < kPiece; ++e)
#pragma unroll
                    for (int c = 0; c < kColumns; c += kPiece) {
                        A value[kPiece];
                        load<A, kPiece>(room + (r + e) * Dim + 16 * c + x * kPiece, value);
#pragma unroll
                        for (int i = 0; i < kEach; ++i)
#pragma unroll
                            for (int f = 0; f < kPiece; ++f) to[i][c + f] += weight[i][e] * value[f];
                    }
            }
        }
    }

    /// Row i of this thread's sums, times `scale`.
    template <class O>
    __device__ __forceinline__ void write(const A (&sums)[kColumns], A scale, const HeadRows<O>& to,
                                          int i) const {
        if (first + i >= to.count) return;
#pragma unroll
        for (int c = 0; c < kColumns; c += kPiece) {
            A value[kPiece];
#pragma unroll
            for (int f = 0; f < kPiece; ++f) value[f] = sums[c + f] * scale;
            store_piece(value, to, first + i, 16 * c + x * kPiece);
        }
    }

    /// Over the 16 threads that share rows, on all of them.
    template <class Combine>
    static __device__ __forceinline__ A over_row(A value, Combine combine) {
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2)
            value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
        return value;
    }

    int x, first;
    A *room, *weights;
};

/// Exponentials are of base 2, which a GPU computes: scores are in units of log 2.
template <class A>
inline constexpr A kLog2E = static_cast<A>(1.44269504088896340736);
template <class A>
inline constexpr A kLog2 = static_cast<A>(0.693147180559945309417);

}  // namespace maestro::kernels
