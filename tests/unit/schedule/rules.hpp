// The rules of a step (docs/scheduling.md), read off start and end of each task: knows nothing of how plans
// are made or executed.
#pragma once

#include <string>
#include <vector>

#include "schedule/execution/simulate.hpp"

namespace maestro::schedule_test {

/// What the execution of a plan breaks, in words; empty for a good one. Dispatch::planned: also the order of
/// the plan's agendas.
std::vector<std::string> broken_rules(const schedule::Problem& problem, const schedule::StepPlan& plan,
                                      const schedule::Timeline& timeline, schedule::Dispatch dispatch);

}  // namespace maestro::schedule_test
