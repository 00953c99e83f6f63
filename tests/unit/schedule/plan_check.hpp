// The rules of a step plan, whatever its times.
#pragma once

#include <string>
#include <vector>

#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule_test {

/// What the plan breaks, in words; empty for a good one: every active sample once per section, on the
/// groups that its edges allow, every task once, and an order in which no lane waits for ever under the
/// windows.
std::vector<std::string> check_plan(const schedule::Problem& problem, const schedule::StepPlan& plan);

/// Returns whether a group of the edge's producer may send samples to this group of its consumer.
bool serves(const schedule::Problem& problem, const schedule::EdgeShape& edge, int up, int down);

}  // namespace maestro::schedule_test
