// Thread indices and synchronization of a block's threads. A mask may only name lanes that exist and have not
// exited. A violation ends the program, as does a deadlock.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>
#include <source_location>
#include <type_traits>

// Indices of the running thread. Kernels only read them.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace hosted {

enum class Exchange { shuffle, ballot, sync };

void barrier(const std::source_location& where);
/// Waits until all lanes in `mask` have called it. A shuffle returns the value of lane `source`, a ballot the
/// lowest bit of each lane's value.
std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source,
                       const std::source_location& where);
unsigned lane();

template <class T>
requires std::is_arithmetic_v<T> T shuffle(unsigned mask, T value, unsigned source,
                                           const std::source_location& where) {
    if constexpr (sizeof(T) == 8) {
        const auto bits = std::bit_cast<std::uint64_t>(value);
        return std::bit_cast<T>(exchange(Exchange::shuffle, mask, bits, source, where));
    } else {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        return std::bit_cast<T>(
            static_cast<std::uint32_t>(exchange(Exchange::shuffle, mask, bits, source, where)));
    }
}

/// The first lane of the caller's group of `width` lanes.
inline unsigned first(int width) {
    return lane() & ~static_cast<unsigned>(width - 1);
}

}  // namespace hosted

inline void __syncthreads(std::source_location where = std::source_location::current()) {
    hosted::barrier(where);
}

inline void __syncwarp(unsigned mask = ~0u, std::source_location where = std::source_location::current()) {
    hosted::exchange(hosted::Exchange::sync, mask, 0, 0, where);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              std::source_location where = std::source_location::current()) {
    const unsigned from = hosted::first(width) + static_cast<unsigned>(source & (width - 1));
    return hosted::shuffle(mask, value, from, where);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize,
                  std::source_location where = std::source_location::current()) {
    const unsigned self = hosted::lane(), from = self ^ static_cast<unsigned>(bits);
    const bool beyond = from >= hosted::first(width) + static_cast<unsigned>(width);
    return hosted::shuffle(mask, value, beyond ? self : from, where);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize,
                   std::source_location where = std::source_location::current()) {
    const unsigned self = hosted::lane(), from = self + by;
    const bool beyond = from >= hosted::first(width) + static_cast<unsigned>(width);
    return hosted::shuffle(mask, value, beyond ? self : from, where);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize,
                 std::source_location where = std::source_location::current()) {
    const unsigned self = hosted::lane();
    return hosted::shuffle(mask, value, self < hosted::first(width) + by ? self : self - by, where);
}

inline unsigned __ballot_sync(unsigned mask, int vote,
                              std::source_location where = std::source_location::current()) {
    return static_cast<unsigned>(hosted::exchange(hosted::Exchange::ballot, mask, vote != 0, 0, where));
}

inline int __any_sync(unsigned mask, int vote, std::source_location where = std::source_location::current()) {
    return __ballot_sync(mask, vote, where) != 0;
}

inline int __all_sync(unsigned mask, int vote, std::source_location where = std::source_location::current()) {
    return __ballot_sync(mask, vote, where) == mask;
}
