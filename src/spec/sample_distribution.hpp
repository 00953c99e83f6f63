// How long samples are that no file holds: [data.lengths] of a deck. docs/deck.md says how a sample follows
// from these numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace maestro {

struct SampleDistribution {
    std::int64_t samples = 0;     ///< how many; 0: there is no distribution
    std::uint64_t seed = 0;       ///< of the random numbers that samples are drawn with
    std::string shape = "fixed";  ///< of the numbers of tokens: fixed, uniform or lognormal
    std::int64_t tokens = 0;      ///< of text in a sample; lognormal: their median
    double spread = 0;            ///< lognormal: standard deviation of the logarithm
    std::int64_t least_tokens = 1, most_tokens = 0;  ///< uniform and lognormal: bounds of the text, inclusive
    double picture_share = 0;                        ///< probability that a sample has pictures
    std::int64_t pictures = 1;                       ///< the most pictures of a sample
    std::vector<int> picture_height = {}, picture_width = {};  ///< pixels, [least, most]
    std::int64_t picture_unit = 1;                             ///< heights and widths are multiples of it
};

/// The most pictures of a sample that is drawn.
inline constexpr std::int64_t kMostPictures = 1024;

}  // namespace maestro
