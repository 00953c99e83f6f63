// A discrete-event simulation of one step: runs the lanes of a plan, or makes them by a dispatch rule.
#pragma once

#include <vector>

#include "schedule/step_plan.hpp"

namespace maestro::schedule {

struct TimedTask {
    int rank = 0;
    int replica = 0;
    Task task;
    double start_s = 0;
    double end_s = 0;
};

struct Timeline {
    std::vector<TimedTask> tasks;  ///< in order of their start
    double makespan_s = 0;
    bool stuck = false;  ///< tasks are left that nothing can start
};

/// Runs every rank's lane in its order, as early as inputs and windows allow.
Timeline simulate(const Problem& problem, const StepPlan& plan);

/// How a free rank chooses among the tasks that could start.
struct DispatchRule {
    /// Upstream sections: run a backward that is ready as soon as every consumer has this many of the
    /// section's micro-batches waiting; before that, forward first. A large number: forward first always.
    int depth = 1;
};

/// Fills plan.lanes and makespan_s from plan.batches. Micro-batches of a replica start their forward in list
/// order, but a loss section takes the first of its list whose inputs are there. Returns false when stuck:
/// the windows are too small for these micro-batches.
bool dispatch(const Problem& problem, const DispatchRule& rule, StepPlan& plan);

}  // namespace maestro::schedule
