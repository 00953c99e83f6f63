// The wavefront scheduler: which sample goes to which replica, in which micro-batch and order, so that the
// critical section does not wait.
#pragma once

#include "schedule/problem.hpp"
#include "schedule/step_plan.hpp"

namespace maestro::schedule {

/// Order and replicas chosen together. Constructive: samples are spread over groups and replicas by
/// descending cost, those with work upstream first, and executed starve-first (choosers.hpp) under several
/// orders and rules, of which the best is kept. Then a local search under a budget: samples change replicas
/// so that work and unavoidable idle time level out, and orders are varied. `moves`: executions of a group
/// that the search may use; 0: as many as keep a plan within a few ms for 1,024 samples.
/// Reproducible: no clock, random numbers of a fixed seed. Where nothing that it constructs runs within the
/// windows, the plan is that of lpt.
StepPlan plan_wavefront(const Problem& problem, std::int64_t step, std::int64_t moves = 0);

}  // namespace maestro::schedule
