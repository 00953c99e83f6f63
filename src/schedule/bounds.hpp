// What no schedule can beat.
#pragma once

#include "schedule/problem.hpp"

namespace maestro::schedule {

/// Seconds; the largest of, for every section: its work over its replicas, with the times that its replicas
/// must wait before their first and after their last task, of few samples also for every subset and every
/// way to deal them; the pairing bound of parallel machines; for all
/// sections that share lanes the sum of their work; the longest chain of one sample. Heads and tails:
/// Carlier, "The one-machine sequencing problem" (1982), over parallel machines; pairing: Lawler et al.,
/// "Sequencing and scheduling" (1993), section on P||Cmax.
double lower_bound(const Problem& problem);

/// The section with the largest load per replica.
int critical_section(const Problem& problem);

/// Load per replica of each section, seconds.
std::vector<double> loads(const Problem& problem);

}  // namespace maestro::schedule
