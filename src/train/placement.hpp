// What `--dry-run` shows of the launch: every rank, its host, its places and its memory.
#pragma once

#include <string>

#include "train/launch.hpp"
#include "workload/memory.hpp"

namespace maestro::train {

/// Collective; on rank 0 a table of several lines, a line for each section of each rank. Hosts are "-" in a
/// dry run of one process, as if on every rank.
std::string placement_table(const Launch& launch, const workload::MemoryPlan& plan);

}  // namespace maestro::train
