// What goes over an edge in a step. Plain values, the same on every rank of the edge.
#pragma once

#include <cstdint>
#include <vector>

namespace maestro::channel {

/// Rows that one rank of the producer's replica holds one after another, and one of the consumer's too. Their
/// gradient goes back the same way.
struct Piece {
    int producer = 0, consumer = 0;  ///< rank within its replica, 0: the leader
    std::int64_t producer_row = 0;   ///< in what that rank puts out for the micro-batch
    std::int64_t consumer_row = 0;   ///< among the rows of the sample that this rank gets
    std::int64_t rows = 0;           ///< > 0
    bool operator==(const Piece&) const = default;
};

/// One sample on an edge.
struct Route {
    std::int64_t sample = 0;  ///< unique in the step
    int producer_replica = 0;
    int producer_micro_batch = 0;  ///< of that replica, in this step
    int consumer_replica = 0;
    std::vector<Piece> pieces;  ///< each row once; none: the sample has no rows
    bool operator==(const Route&) const = default;
};

}  // namespace maestro::channel
