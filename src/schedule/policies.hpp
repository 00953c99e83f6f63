// The policies: which sample goes where, in which micro-batch, in which order.
#pragma once

#include <string_view>

#include "schedule/step_plan.hpp"

namespace maestro::schedule {

/// Largest of: a section's load over its replicas; the longest chain of one sample. No schedule is shorter.
/// Seconds.
double lower_bound(const Problem& problem);

/// The section with the largest load per replica.
int critical_section(const Problem& problem);

/// Starve-first list scheduling. Samples are spread over the replicas by descending cost, first those that
/// have work upstream, so that text-only samples level the rest; the critical section takes a text-only
/// micro-batch only when no other is ready, so that text covers the upstream's head start and its last
/// backwards. Several dispatch rules and orders are simulated and the shortest kept.
StepPlan plan_wavefront(const Problem& problem, std::int64_t step);
/// Sample i to replica i mod dp of the loss section, every section in data order, forward before backward
/// upstream.
StepPlan plan_fifo(const Problem& problem, std::int64_t step);
/// Samples in descending cost of the loss section, each to its least loaded replica, run in that order.
StepPlan plan_lpt(const Problem& problem, std::int64_t step);

/// By its name in the deck: wavefront, fifo, lpt. Throws Error(bad_deck) where the windows are too small for
/// the micro-batch sizes, naming the sections.
StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step);

}  // namespace maestro::schedule
