// Vectorized loads and stores. Elements are converted to the arithmetic type on the way: bf16 becomes fp32 in
// registers.
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

/// Rounds to nearest even and keeps NaN, like the conversion of base/dtype.hpp on the host.
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

/// Elements in 16 bytes, the widest access of global memory.
template <class T>
inline constexpr int kVectorSize = static_cast<int>(16 / sizeof(T));

/// The type that N elements are loaded and stored as, of at most 16 bytes. It is an integer, because nvcc
/// splits stores of uint4 and uint2 where two of them follow each other.
template <class T, int N>
using AccessWord = std::conditional_t<N * sizeof(T) == 16, unsigned __int128,
                                      std::conditional_t<N * sizeof(T) == 8, std::uint64_t, std::uint32_t>>;

/// Elements per access where N are loaded or stored.
template <class T, int N>
inline constexpr int kElementsPerAccess = N < kVectorSize<T> ? N : kVectorSize<T>;

/// Loads N contiguous elements and converts them to the arithmetic type. Either N is 1, or N elements are 4,
/// 8 or a multiple of 16 bytes and `from` is aligned to them (to at most 16 bytes).
template <class T, int N>
__device__ __forceinline__ void load(const T* from, Accumulate<T> (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = widen(*from);
    } else {
        constexpr int kStep = kElementsPerAccess<T, N>;
        static_assert(N % kStep == 0 && kStep * sizeof(T) == sizeof(AccessWord<T, kStep>));
#pragma unroll
        for (int begin = 0; begin < N; begin += kStep) {
            union {
                AccessWord<T, kStep> word;
                T elements[kStep];
            } pack{*reinterpret_cast<const AccessWord<T, kStep>*>(from + begin)};
#pragma unroll
            for (int i = 0; i < kStep; ++i) to[begin + i] = widen(pack.elements[i]);
        }
    }
}

/// Rounds N values to T and stores them. N and `to` as for load().
template <class T, int N>
__device__ __forceinline__ void store(const Accumulate<T> (&from)[N], T* to) {
    if constexpr (N == 1) {
        narrow(from[0], *to);
    } else {
        constexpr int kStep = kElementsPerAccess<T, N>;
        static_assert(N % kStep == 0 && kStep * sizeof(T) == sizeof(AccessWord<T, kStep>));
#pragma unroll
        for (int begin = 0; begin < N; begin += kStep) {
            union {
                AccessWord<T, kStep> word;
                T elements[kStep];
            } pack{AccessWord<T, kStep>{}};
#pragma unroll
            for (int i = 0; i < kStep; ++i) narrow(from[begin + i], pack.elements[i]);
            *reinterpret_cast<AccessWord<T, kStep>*>(to + begin) = pack.word;
        }
    }
}

/// Whether rows of `columns` elements, which begin at these pointers, can be accessed 16 bytes at a time.
template <class T, class... Pointers>
bool can_vectorize(std::int64_t columns, const Pointers*... pointers) {
    return columns % kVectorSize<T> == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls body.operator()<N>() with N = kVectorSize<T> where can_vectorize(), else with N = 1.
template <class T, class Body, class... Pointers>
void by_vector_size(Body&& body, std::int64_t columns, const Pointers*... pointers) {
    if (can_vectorize<T>(columns, pointers...))
        body.template operator()<kVectorSize<T>>();
    else
        body.template operator()<1>();
}

}  // namespace maestro::kernels
