// The policies: which sample goes where, in which micro-batch, in which order.
#pragma once

#include <cstdint>
#include <string_view>

#include "schedule/step_plan.hpp"

namespace maestro::schedule {

// Every problem has a plan under every policy. Where a window upstream is too small for the micro-batches of
// a step as they are, fifo and lpt cut them smaller, and so does wavefront as a last resort.

/// Sample i to replica i mod dp of the loss section, every section strictly in data order, forward before
/// backward upstream.
StepPlan plan_fifo(const Problem& problem, std::int64_t step);
/// Samples in descending cost of the loss section, each to its least loaded replica, run strictly in that
/// order.
StepPlan plan_lpt(const Problem& problem, std::int64_t step);

/// By its name in the deck: wavefront, fifo, lpt. `moves`: see plan_wavefront.
StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step,
                   std::int64_t moves = 0);

}  // namespace maestro::schedule
