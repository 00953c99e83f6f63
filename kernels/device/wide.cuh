// More than 16 bytes of elements at once, where the narrower of two types has 16.
#pragma once

#include "kernels/device/number.cuh"

namespace maestro::kernels {

/// N elements side by side, widened. N is 1, or a multiple of kPack<T> from an aligned place.
template <class T, int N>
__device__ __forceinline__ void load_wide(const T* from, Accumulate<T> (&to)[N]) {
    constexpr int kStep = N == 1 ? 1 : kPack<T>;
#pragma unroll
    for (int begin = 0; begin < N; begin += kStep) {
        Accumulate<T> piece[kStep];
        load<T, kStep>(from + begin, piece);
#pragma unroll
        for (int i = 0; i < kStep; ++i) to[begin + i] = piece[i];
    }
}

template <class T, int N>
__device__ __forceinline__ void store_wide(const Accumulate<T> (&from)[N], T* to) {
    constexpr int kStep = N == 1 ? 1 : kPack<T>;
#pragma unroll
    for (int begin = 0; begin < N; begin += kStep) {
        Accumulate<T> piece[kStep];
#pragma unroll
        for (int i = 0; i < kStep; ++i) piece[i] = from[begin + i];
        store<T, kStep>(piece, to + begin);
    }
}

}  // namespace maestro::kernels
