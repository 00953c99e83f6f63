// Elements in registers: bf16 widened for arithmetic, 16 bytes read and written at once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/array.hpp"

namespace maestro::kernels {

__device__ __forceinline__ float widen(float value) {
    return value;
}
__device__ __forceinline__ double widen(double value) {
    return value;
}
__device__ __forceinline__ float widen(bf16 value) {
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

/// To nearest even; NaN stays NaN: as base/dtype.hpp does on the host.
__device__ __forceinline__ void narrow(float value, bf16& to) {
    const unsigned bits = __float_as_uint(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to.bits =
        static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ void narrow(float value, float& to) {
    to = value;
}
__device__ __forceinline__ void narrow(double value, double& to) {
    to = value;
}

/// Elements of 16 bytes.
template <class T>
inline constexpr int kPack = static_cast<int>(16 / sizeof(T));

/// What N elements are read and written as: 16 bytes at most. Integers, not uint4 or uint2: of their stores
/// nvcc makes several where a kernel has two in a row.
template <class T, int N>
using Word = std::conditional_t<N * sizeof(T) == 16, unsigned __int128,
                                std::conditional_t<N * sizeof(T) == 8, std::uint64_t, std::uint32_t>>;

/// Elements that one access moves when N are wanted.
template <class T, int N>
inline constexpr int kAtOnce = N < kPack<T> ? N : kPack<T>;

/// N elements side by side, widened. N is 1; or 4, 8 or 16 bytes, or several times 16, from a place that is
/// aligned to as much (16 at most).
template <class T, int N>
__device__ __forceinline__ void load(const T* from, Accumulate<T> (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = widen(*from);
    } else {
        constexpr int kStep = kAtOnce<T, N>;
        static_assert(N % kStep == 0 && kStep * sizeof(T) == sizeof(Word<T, kStep>));
#pragma unroll
        for (int begin = 0; begin < N; begin += kStep) {
            union {
                Word<T, kStep> word;
                T elements[kStep];
            } pack{*reinterpret_cast<const Word<T, kStep>*>(from + begin)};
#pragma unroll
            for (int i = 0; i < kStep; ++i) to[begin + i] = widen(pack.elements[i]);
        }
    }
}

template <class T, int N>
__device__ __forceinline__ void store(const Accumulate<T> (&from)[N], T* to) {
    if constexpr (N == 1) {
        narrow(from[0], *to);
    } else {
        constexpr int kStep = kAtOnce<T, N>;
        static_assert(N % kStep == 0 && kStep * sizeof(T) == sizeof(Word<T, kStep>));
#pragma unroll
        for (int begin = 0; begin < N; begin += kStep) {
            union {
                Word<T, kStep> word;
                T elements[kStep];
            } pack{Word<T, kStep>{}};
#pragma unroll
            for (int i = 0; i < kStep; ++i) narrow(from[begin + i], pack.elements[i]);
            *reinterpret_cast<Word<T, kStep>*>(to + begin) = pack.word;
        }
    }
}

/// May rows of so many columns be read 16 bytes at a time?
template <class T, class... Pointers>
bool packs(std::int64_t columns, const Pointers*... pointers) {
    return columns % kPack<T> == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// body.operator()<N>() with N = kPack<T> where that may be, else 1.
template <class T, class Body, class... Pointers>
void by_pack(Body&& body, std::int64_t columns, const Pointers*... pointers) {
    if (packs<T>(columns, pointers...))
        body.template operator()<kPack<T>>();
    else
        body.template operator()<1>();
}

}  // namespace maestro::kernels
