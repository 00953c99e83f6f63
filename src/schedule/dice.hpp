// Random numbers of the schedulers: the same for the same seed, on every machine.
#pragma once

#include <cstdint>

namespace maestro::schedule {

/// SplitMix64 (Steele, Lea, Flood, 2014).
class Dice {
public:
    explicit Dice(std::uint64_t seed) : state_(seed) {}
    int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    std::uint64_t state_;
};

}  // namespace maestro::schedule
