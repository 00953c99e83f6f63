// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#pragma once

#include <cstdint>

namespace maestro {

/// Between two states of the generator.
inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

/// Returns the number of a state, which is a hash of it.
constexpr std::uint64_t split_mix(std::uint64_t state) {
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    return state ^ (state >> 31);
}

}  // namespace maestro
