// Attention heads in registers, for QK-norm and rotary embeddings. A lane holds the same channels of the
// lower and the upper half of a head, because the rotation combines these.
#pragma once

#include "kernels/device/lanes.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

/// Sizes: `query` and `key` heads of 2 * half channels (at most 256) in each of `rows` rows of `width`
/// channels.
struct Heads {
    std::int64_t rows, query, key, width;
    int half;
};

/// The part of a head that one lane holds: kRounds times N contiguous channels of either half. A warp holds
/// up to 256 channels.
template <class A, int N>
struct HeadFragment {
    static constexpr int kRounds = N < 4 ? 4 / N : 1, kSize = 2 * kRounds * N;
    A pieces[2 * kRounds][N];  ///< the lower half's pieces, then the upper half's

    __device__ A& operator[](int i) { return pieces[i / N][i % N]; }

    /// Calls body(low, high, j) for each pair of pieces. j is the first channel of `low` in the lower half.
    template <class Body>
    __device__ __forceinline__ void for_each_piece(Lanes lanes, int half, Body body) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int j = (lanes.lane() + round * lanes.count()) * N;
            if (j < half) body(pieces[round], pieces[kRounds + round], j);
        }
    }
    /// Rotates the head by the angles of its row, or by the negative angles where `inverse`.
    __device__ __forceinline__ void rotate(const A* cos, const A* sin, bool inverse, Lanes lanes, int half) {
        for_each_piece(lanes, half, [&](A(&low)[N], A(&high)[N], int j) {
            A cosine[N], sine[N];
            load<A, N>(cos + j, cosine);
            load<A, N>(sin + j, sine);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const A x = low[i], y = high[i], s = inverse ? -sine[i] : sine[i];
                low[i] = x * cosine[i] - y * s;
                high[i] = y * cosine[i] + x * s;
            }
        });
    }
};

/// Returns zeros where `valid` is false, and for channels beyond the ends of the halves.
template <class T, int N>
__device__ __forceinline__ HeadFragment<Accumulate<T>, N> load_head(const T* head, bool valid, Lanes lanes,
                                                                    int half) {
    using A = Accumulate<T>;
    HeadFragment<A, N> part{};
    if (valid)
        part.for_each_piece(lanes, half, [&](A(&low)[N], A(&high)[N], int j) {
            load<T, N>(head + j, low);
            load<T, N>(head + half + j, high);
        });
    return part;
}

template <class T, int N>
__device__ __forceinline__ void store_head(HeadFragment<Accumulate<T>, N>& part, T* head, Lanes lanes,
                                           int half) {
    using A = Accumulate<T>;
    part.for_each_piece(lanes, half, [&](A(&low)[N], A(&high)[N], int j) {
        store<T, N>(low, head + j);
        store<T, N>(high, head + half + j);
    });
}

inline Heads heads(const Array& qkv, const Array& cos, const Array& q, const Array& k) {
    const std::int64_t dim = 2 * cos.columns;
    return {qkv.rows, q.columns / dim, k.columns / dim, qkv.columns, static_cast<int>(cos.columns)};
}

}  // namespace maestro::kernels
