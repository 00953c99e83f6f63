// Plans for problems in which a section has several stages.
#pragma once

#include <optional>

#include "schedule/problem.hpp"
#include "schedule/step_plan.hpp"

namespace maestro::schedule {

/// Returns the problem with a single stage for each section: the one with the largest load of its pipeline,
/// whose rate is that of the pipeline. Lanes are numbered again.
Problem without_pipelines(const Problem& problem);

/// Plans the problem by `base`, a plan of `single`, which without_pipelines() has returned: the same
/// micro-batches, in the order in which each replica starts them there. All stages run them in that order,
/// forwards and backwards alternately (1F1B). None if they do not run within the windows in that order.
std::optional<StepPlan> plan_pipelines(const Problem& problem, const Problem& single, const StepPlan& base);

}  // namespace maestro::schedule
