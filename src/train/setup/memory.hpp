// Checks, before anything is allocated, that a run fits into the memory of its machines, and reports in the
// end what it used.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "channel/open.hpp"
#include "train/setup/run_context.hpp"
#include "workload/memory.hpp"

namespace maestro::train {

/// Collective over the world. Adds to the plan what libraries need of a rank's GPU, and chooses the windows
/// that the deck leaves open (0) as large as the rank with the least free memory allows, the same on every
/// rank. Throws Error(device_memory, all_ranks), which names the memory, the sections and what to do, where
/// the ranks that share a node or a GPU need more than is free there. In a world of another size than the
/// graph's, every rank claims what the graph needs on its largest rank: as a dry run of one process, or where
/// each rank runs a graph of one rank by itself. Returns the device of this rank, for a report.
workload::RankDevice fit_memory(const RunContext& context, workload::MemoryPlan& plan);

/// Runs `action`. To an Error(device_memory) of this rank it adds what was planned for the rank, and which
/// keys of the deck reduce it.
void in_planned_memory(const RunContext& context, const workload::MemoryPlan& plan,
                       const std::function<void()>& action);

/// Collective over the world. Runs `action`, which may not communicate, on every rank as in_planned_memory().
/// An error of one rank is thrown on all.
void allocate_on_all_ranks(const RunContext& context, const workload::MemoryPlan& plan,
                           const std::function<void()>& action);

/// Bytes of this rank.
struct MemoryUse {
    double planned = 0;          ///< by workload::memory_of()
    double planned_buffers = 0;  ///< the part of it for buffers and windows
    double buffers = 0;          ///< allocated for them
    double used = 0;             ///< of these, the most that was in use
    double resident = 0;         ///< growth of the process since the start, at most
};
/// Collective. Returns lines for the log, the same on every rank: about the rank that needs most by the plan,
/// and about that of each stage of a pipeline.
std::vector<std::string> describe_use(const comm::Communicator& world, const graph::SectionGraph& graph,
                                      const MemoryUse& mine);

}  // namespace maestro::train
