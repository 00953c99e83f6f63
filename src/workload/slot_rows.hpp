// Upper bounds of the rows of an edge that one rank holds at a time. The samples of a micro-batch are not
// known before the step, so the bounds hold for every micro-batch that the sample file allows. For replicas
// of one rank they are exact.
#pragma once

#include <cstdint>

#include "parallel/partition.hpp"
#include "workload/sample_table.hpp"

namespace maestro::workload {

/// A section at one end of an edge: its largest micro-batch in samples, and how its replicas split rows.
struct LaneSpec {
    int section = 0;
    int micro_batch = 1;
    parallel::Degrees degrees = {};
};

/// Returns the most rows (tokens or patches) of a micro-batch in one slice, that is, on one cp rank.
std::int64_t max_slice_rows(const SampleTable& table, const LaneSpec& lane);
/// Returns the most output rows of a micro-batch on one rank.
std::int64_t max_rows_sent(const SampleTable& table, const LaneSpec& producer);
/// Returns the most rows of a producer's micro-batch that one rank of the consumer receives, in whichever
/// micro-batches of the consumer its samples are.
std::int64_t max_rows_received(const SampleTable& table, const LaneSpec& producer, const LaneSpec& consumer);

}  // namespace maestro::workload
