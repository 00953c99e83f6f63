// The wavefront scheduler chooses the group, the micro-batch and the order of every sample so that the
// critical section does not wait.
#pragma once

#include <stop_token>

#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

/// How much the wavefront's search may try.
struct SearchEffort {
    std::int64_t moves = 0;  ///< executions for a sub-problem; 0: as many as plan 1,024 samples in a few ms
    /// A sixteenth of the moves, for one schedule of many that are compared. Where a step has few samples,
    /// whose division into sub-problems decides most of its time, one division is tried instead of sixteen.
    bool brief = false;
};

/// Plans a step in two stages. Construction: samples are assigned to sub-problems and groups by descending
/// cost, those with upstream work first, and executed by StarveFirst under several orders and rules, of which
/// the best is kept. Local search: samples change groups so that work and unavoidable idle time level out,
/// and orders are varied. The samples of a pipeline are first cut into micro-batches, which then take the
/// place of samples; all of its stages are executed, in one order. Reproducible: it uses no
/// clock and random numbers of a fixed seed. If nothing that it constructs runs within the windows, the plan
/// is that of lpt. `unwanted`: once it is stopped, the search ends, and with it this call, with any plan.
/// `known_s`: the makespan of a known plan, of use where few partitions of few samples lead to no shorter
/// one.
StepPlan plan_wavefront(const Problem& problem, std::int64_t step, const SearchEffort& effort = {},
                        const std::stop_token& unwanted = {},
                        double known_s = std::numeric_limits<double>::infinity());

}  // namespace maestro::schedule
