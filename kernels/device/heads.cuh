// Heads of attention in registers, their halves side by side, for norm and rotation.
#pragma once

#include "kernels/device/lanes.cuh"
#include "kernels/device/number.cuh"

namespace maestro::kernels {

/// Sizes: query and key heads of 2 * half channels, at most 256, in rows of `width` channels.
struct Heads {
    std::int64_t rows, query, key, width;
    int half;
};

/// What a lane has of a head: N channels side by side of both halves, kRounds times, so that a warp has 256.
template <class A, int N>
struct HeadPart {
    static constexpr int kRounds = N < 4 ? 4 / N : 1, kSize = 2 * kRounds * N;
    A pieces[2 * kRounds][N];  ///< those of the upper half behind those of the lower

    __device__ A& operator[](int i) { return pieces[i / N][i % N]; }

    /// Calls body(low, high, j) with the places of this lane in the lower half.
    template <class Body>
    __device__ __forceinline__ void for_places(Lanes lanes, int half, Body body) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int j = (lanes.lane() + round * lanes.count()) * N;
            if (j < half) body(pieces[round], pieces[kRounds + round], j);
        }
    }
    /// Turns it by the angles of a row, or back.
    __device__ __forceinline__ void turn(const A* cos, const A* sin, bool back, Lanes lanes, int half) {
        for_places(lanes, half, [&](A(&low)[N], A(&high)[N], int j) {
            A cosine[N], sine[N];
            load<A, N>(cos + j, cosine);
            load<A, N>(sin + j, sine);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const A x = low[i], y = high[i], s = back ? -sine[i] : sine[i];
                low[i] = x * cosine[i] - y * s;
                high[i] = y * cosine[i] + x * s;
            }
        });
    }
};

/// Zeros where `there` is false and beyond the ends of the halves.
template <class T, int N>
__device__ __forceinline__ HeadPart<Accumulate<T>, N> load_head(const T* head, bool there, Lanes lanes,
                                                                int half) {
    using A = Accumulate<T>;
    HeadPart<A, N> part{};
    if (there)
        part.for_places(lanes, half, [&](A(&low)[N], A(&high)[N], int j) {
            load<T, N>(head + j, low);
            load<T, N>(head + half + j, high);
        });
    return part;
}

template <class T, int N>
__device__ __forceinline__ void store_head(HeadPart<Accumulate<T>, N>& part, T* head, Lanes lanes, int half) {
    using A = Accumulate<T>;
    part.for_places(lanes, half, [&](A(&low)[N], A(&high)[N], int j) {
        store<T, N>(low, head + j);
        store<T, N>(high, head + half + j);
    });
}

inline Heads heads(const Array& qkv, const Array& cos, const Array& q, const Array& k) {
    const std::int64_t dim = 2 * cos.columns;
    return {qkv.rows, q.columns / dim, k.columns / dim, qkv.columns, static_cast<int>(cos.columns)};
}

}  // namespace maestro::kernels
