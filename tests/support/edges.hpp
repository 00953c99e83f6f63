// Edges whose replicas are one rank each, and routes over them, in few words.
#pragma once

#include <vector>

#include "channel/route.hpp"
#include "channel/spec.hpp"

namespace maestro::testing_support {

/// A side of replicas of one rank each.
inline channel::Side one_each(const std::vector<int>& ranks) {
    channel::Side side;
    for (const int rank : ranks) side.push_back({rank});
    return side;
}

/// A sample whose rows lie one after another in the producer's output.
inline channel::Route route(std::int64_t sample, int from, int micro_batch, int to, std::int64_t first_row,
                            std::int64_t rows) {
    channel::Route made{sample, from, micro_batch, to, {}};
    if (rows > 0) made.segments.push_back({0, 0, first_row, 0, rows});
    return made;
}

}  // namespace maestro::testing_support
