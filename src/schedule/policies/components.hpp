// Components: sections that no edge and no lane joins, directly or through others, never wait for each other.
// Each component is planned by itself, and the plans are put together.
#pragma once

#include <functional>
#include <vector>

#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

/// Returns the component of each section, numbered by their first sections. A component without a loss
/// belongs to the first one.
std::vector<int> components_of(const Problem& problem);

/// Returns the plan of the whole problem, each of whose components is planned by `plan`, with the samples
/// that have work for it.
StepPlan plan_components(const Problem& problem, const std::function<StepPlan(const Problem&)>& plan);

}  // namespace maestro::schedule
