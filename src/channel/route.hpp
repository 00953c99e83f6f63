// The samples that cross an edge in a step. Plain values, the same on every rank of the edge. A group is a
// replica group (graph::Section::replica_groups).
#pragma once

#include <cstdint>
#include <vector>

namespace maestro::channel {

/// Rows of a sample that are consecutive both on one rank of the producer's group and on one rank of the
/// consumer's. Their gradient returns the same way.
struct RowSegment {
    int producer = 0, consumer = 0;  ///< rank within its group, 0: the leader
    std::int64_t producer_row = 0;   ///< in that rank's output of the micro-batch
    std::int64_t consumer_row = 0;   ///< among the rows of the sample that this rank receives
    std::int64_t rows = 0;           ///< > 0
    bool operator==(const RowSegment&) const = default;
};

/// One sample on an edge.
struct Route {
    std::int64_t sample = 0;  ///< unique in the step
    int producer_group = 0;
    int producer_micro_batch = 0;  ///< of that group, in this step
    int consumer_group = 0;
    std::vector<RowSegment> segments;  ///< each row once; empty if the sample has no rows
    bool operator==(const Route&) const = default;
};

}  // namespace maestro::channel
