// Random numbers for all orders that the simulation chooses. There is one sequence, so that a seed reproduces
// a whole run.
#pragma once

#include <cstdint>

namespace hosted {

class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    /// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// Uniform in [0, n), n >= 1.
    std::uint64_t below(std::uint64_t n) { return next() % n; }
    bool one_in(std::uint64_t n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};

}  // namespace hosted
