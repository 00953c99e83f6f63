// Does the job fit into the machines' memory? Asked before any of it is taken; and what it took in the end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "train/run/run_context.hpp"
#include "workload/memory.hpp"

namespace maestro::train {

/// Collective. What libraries take of a rank's GPU enters the plan. Windows that are still open (0) are given
/// what is free on the fullest rank, the same on every rank. Throws Error(device_memory, all_ranks), naming
/// the memory and the sections, where the ranks that share a node's or a GPU's need more than is free there.
void fit_memory(const RunContext& context, workload::MemoryPlan& plan);

/// Runs `action`. An Error(device_memory) of this rank's says then what was planned for the rank, and which
/// keys of the deck make it less.
void in_planned_memory(const RunContext& context, const workload::MemoryPlan& plan,
                       const std::function<void()>& action);

/// Bytes of this rank.
struct MemoryUse {
    double planned = 0;          ///< what memory_of() says
    double planned_buffers = 0;  ///< the part of it that buffers and windows are to take
    double buffers = 0;          ///< that they took
    double used = 0;             ///< of these, what was ever in use
    double resident = 0;         ///< the process at its largest, above what it was after start-up
};
/// Collective. A line of the log, of the rank that needs most by the plan, on every rank.
std::string describe_use(const comm::Communicator& world, const MemoryUse& mine);

}  // namespace maestro::train
