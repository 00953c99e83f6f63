// The choice of a policy: which sample goes where, in which micro-batch, in which order.
#pragma once

#include <cstdint>
#include <string_view>

#include "schedule/problem.hpp"
#include "schedule/step_plan.hpp"

namespace maestro::schedule {

/// By its name in the deck: wavefront, fifo, lpt. `moves`: see plan_wavefront. Every problem has a plan under
/// every policy: where a window upstream is too small for the micro-batches of a step as they are, fifo and
/// lpt cut them smaller, and so does wavefront as a last resort.
StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step,
                   std::int64_t moves = 0);

}  // namespace maestro::schedule
