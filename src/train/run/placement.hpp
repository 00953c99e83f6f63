// What `--dry-run` shows of the context: every rank, its host, its places and its memory.
#pragma once

#include <string>

#include "train/run/run_context.hpp"
#include "workload/memory.hpp"

namespace maestro::train {

/// Collective; on rank 0 a table of several lines, a line for each section of each rank. Hosts are "-" in a
/// dry run of one process, as if on every rank.
std::string placement_table(const RunContext& context, const workload::MemoryPlan& plan);

/// Of the run's first step, by section: what its ranks send each other within tasks (tp, cp), to sum
/// gradients and hand weights round (dp), and over its outgoing edges and back. By the models' own code on
/// paper.
std::string traffic_table(const config::Deck& deck, const workload::SampleTable& table, std::int32_t marker);

}  // namespace maestro::train
