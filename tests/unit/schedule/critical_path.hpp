// Floats of a plan's tasks by the definition: longest paths over samples, lanes and windows; knows nothing of
// how plans are made.
#pragma once

#include <string>
#include <vector>

#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule_test {

/// What is wrong with Task::takes_s and float_s of a plan, in words; empty for a good one. `compared` counts
/// the finite floats that were compared.
std::vector<std::string> wrong_floats(const schedule::Problem& problem, const schedule::StepPlan& plan,
                                      int& compared);

}  // namespace maestro::schedule_test
