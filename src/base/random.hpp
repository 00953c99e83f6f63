// Counter-based random numbers: a value depends on (seed, stream, index) alone, not on the caller or the
// order of calls. Philox4x32-10, J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace maestro {

/// One Philox4x32-10 block.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

class Random {
public:
    /// `stream` names what the numbers are for ("init/language.layers.0.qkv", "order/epoch 3").
    Random(std::uint64_t seed, std::string_view stream);

    std::uint64_t bits(std::uint64_t index) const;
    double uniform(std::uint64_t index) const;  ///< in [0, 1)
    double normal(std::uint64_t index) const;   ///< mean 0, variance 1 (Box-Muller)
    /// A permutation of 0..n-1 (Fisher-Yates).
    std::vector<std::int64_t> permutation(std::int64_t n) const;

private:
    std::uint64_t seed_;
    std::uint64_t stream_;
};

}  // namespace maestro
