// The choice of a policy.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string_view>

#include "schedule/policies/wavefront.hpp"
#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

/// Plans a step by the policy with this name in the deck: wavefront, fifo or lpt. `effort` and
/// `unwanted`: see plan_wavefront. Every problem has a plan under every policy: if an upstream window is too
/// small for the micro-batches of a step, fifo and lpt make them smaller, and so does wavefront as a last
/// resort. Sections that cannot wait for each other are planned independently.
StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step,
                   const SearchEffort& effort = {}, const std::stop_token& unwanted = {});

}  // namespace maestro::schedule
