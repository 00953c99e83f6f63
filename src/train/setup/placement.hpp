// The tables that `--dry-run` prints: ranks with their hosts, sections and memory, and the traffic of a step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "train/setup/run_context.hpp"
#include "workload/memory.hpp"

namespace maestro::train {

/// Returns the rows with columns as wide as their widest cell; columns [words_begin, words_end) to the left,
/// as texts are.
std::string aligned(const std::vector<std::vector<std::string>>& rows, std::size_t words_begin,
                    std::size_t words_end);

/// Collective. Returns on rank 0 a table with a line for each section of each rank, elsewhere "". In a dry
/// run of one process the hosts are unknown ("-"). Where sections are laid on several nodes, it numbers them.
std::string placement_table(const RunContext& context, const workload::MemoryPlan& plan);

/// Returns a table of what the ranks of each section send in the first step of the run: to each other within
/// tasks (tp, cp), to reduce gradients and all-gather weights (dp), and over the outgoing edges and back. The
/// model code counts it on the meta backend.
std::string traffic_table(const workload::Scenario& scenario, const workload::SampleTable& table);

}  // namespace maestro::train
