// How many rows of an edge one rank may have to hold at a time: bounds that no plan exceeds, since the
// samples of a micro-batch are not known before the step. For replicas of one rank they are reached.
#pragma once

#include <cstdint>

#include "parallel/partition.hpp"
#include "workload/sample_table.hpp"

namespace maestro::workload {

/// A section at an end of an edge: its micro-batch at most, and how its replicas are cut.
struct Lane {
    int section = 0;
    int micro_batch = 1;
    parallel::Degrees degrees = {};
};

/// Rows of a micro-batch (tokens or patches) in one slice of a replica's cp ranks.
std::int64_t most_slice_rows(const SampleTable& table, const Lane& lane);
/// Rows that one rank puts out for a micro-batch.
std::int64_t most_sent(const SampleTable& table, const Lane& producer);
/// Rows that one rank gets of a micro-batch of the producer, whichever micro-batches they are for.
std::int64_t most_received(const SampleTable& table, const Lane& producer, const Lane& consumer);

}  // namespace maestro::workload
