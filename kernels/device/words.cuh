// Elements in registers where tensors of two types meet: as many at a time as make up 16 bytes of the wider
// one, in words of 16, 8 or 4 bytes.
#pragma once

#include <type_traits>

#include "kernels/device/number.cuh"

namespace maestro::kernels {

/// Integers, not uint4 or uint2: of their stores nvcc makes several where a kernel has two in a row.
template <class T, int N>
using Word = std::conditional_t<N * sizeof(T) == 16, unsigned __int128,
                                std::conditional_t<N * sizeof(T) == 8, std::uint64_t, std::uint32_t>>;

/// N elements side by side, widened. N is 1, or their place is aligned to N * sizeof(T).
template <class T, int N>
__device__ __forceinline__ void read(const T* from, Accumulate<T> (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = widen(*from);
    } else {
        static_assert(N * sizeof(T) == sizeof(Word<T, N>));
        union {
            Word<T, N> word;
            T elements[N];
        } pack{*reinterpret_cast<const Word<T, N>*>(from)};
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = widen(pack.elements[i]);
    }
}

template <class T, int N>
__device__ __forceinline__ void write(const Accumulate<T> (&from)[N], T* to) {
    if constexpr (N == 1) {
        narrow(from[0], *to);
    } else {
        static_assert(N * sizeof(T) == sizeof(Word<T, N>));
        union {
            Word<T, N> word;
            T elements[N];
        } pack{Word<T, N>{}};
#pragma unroll
        for (int i = 0; i < N; ++i) narrow(from[i], pack.elements[i]);
        *reinterpret_cast<Word<T, N>*>(to) = pack.word;
    }
}

}  // namespace maestro::kernels
