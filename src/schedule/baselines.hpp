// The policies that wavefront is measured by, and falls back on: samples in one fixed order.
#pragma once

#include <cstdint>

#include "schedule/problem.hpp"
#include "schedule/step_plan.hpp"

namespace maestro::schedule {

/// Sample i to replica i mod dp of the loss section, every section strictly in data order, forward before
/// backward upstream.
StepPlan plan_fifo(const Problem& problem, std::int64_t step);
/// Samples in descending cost of the loss section, each to its least loaded replica, run strictly in that
/// order.
StepPlan plan_lpt(const Problem& problem, std::int64_t step);

}  // namespace maestro::schedule
