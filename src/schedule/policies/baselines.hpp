// The policies with one fixed order of samples: wavefront is compared with them and falls back on lpt.
#pragma once

#include <cstdint>

#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

/// First in, first out: sample i goes to group i mod dp of the loss section. Every section keeps the order
/// of the data, and upstream sections run forwards before backwards.
StepPlan plan_fifo(const Problem& problem, std::int64_t step);
/// Longest processing time first (LPT, Graham 1969): samples by descending cost of the loss section, each to
/// its least loaded group, run strictly in that order.
StepPlan plan_lpt(const Problem& problem, std::int64_t step);

}  // namespace maestro::schedule
