// Lower bounds of the makespan.
#pragma once

#include "schedule/problem/problem.hpp"

namespace maestro::schedule {

/// Returns a time in seconds that no schedule is shorter than. It is the largest of these: for every stage,
/// and for all stages of a section that share lanes, their work over the groups, plus the times that the
/// groups must wait before their first and after their last task, with few samples also for every subset
/// and every assignment of them; the pairing bound of parallel machines; the work of all sections that share
/// lanes; the longest chain of one sample. The work of a lane with several parts counts the longest sample of
/// each micro-batch for all of them, in the best of all divisions into micro-batches. Heads and tails:
/// Carlier, "The one-machine sequencing problem" (1982), over parallel machines; pairing: Lawler et al.,
/// "Sequencing and scheduling" (1993), section on P||Cmax.
double lower_bound(const Problem& problem);

/// Returns the first stage on the lanes with the largest load from one section.
int critical_stage(const Problem& problem);

/// Returns the stages of each section that limit its rate: those on the lane with the largest load. That is
/// one stage unless the section has several chunks.
std::vector<std::vector<int>> longest_stages(const Problem& problem);

/// Returns the load per group of each stage, seconds.
std::vector<double> loads(const Problem& problem);

}  // namespace maestro::schedule
