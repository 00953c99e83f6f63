// Who sends which rows to whom over an edge in a step: known to all ranks from the plan and the samples'
// lengths.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "channel/channel.hpp"
#include "schedule/step_plan.hpp"

namespace maestro::train {

/// Pure. `rows_of(sample)`: what the upstream section puts out for it. A sample that only one of the sections
/// `from` and `to` sees has no route; its rows count all the same, in the order of the upstream micro-batch.
std::vector<channel::Route> routes(const schedule::StepPlan& plan, int from, int to,
                                   const std::function<std::int64_t(std::int64_t)>& rows_of);

}  // namespace maestro::train
