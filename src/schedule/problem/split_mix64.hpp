// Random numbers of the scheduler. They depend on the seed alone, not on the machine.
#pragma once

#include <cstdint>

#include "base/split_mix64.hpp"

namespace maestro::schedule {

/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
class SplitMix64 {
public:
    explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
    int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    std::uint64_t next() {
        state_ += kSplitMixStep;
        return split_mix(state_);
    }
    std::uint64_t state_;
};

}  // namespace maestro::schedule
