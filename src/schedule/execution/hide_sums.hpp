// The order in which a group with a loss begins and ends its step: the sum of its gradients goes on while
// its last backward runs, and the gather of its weights while its first forward runs. Behind a short
// micro-batch most of a sum is left when the tasks have ended.
#pragma once

#include <vector>

#include "schedule/execution/machine.hpp"

namespace maestro::schedule {

/// Returns `executed`, an execution of the machine's instance with these micro-batches, or another one in
/// which groups of the anchor begin or end with longer micro-batches, if the step takes less time with
/// that, sums and gathers included (StageShape::sum_s and gather_s). A group tries a few of its
/// micro-batches in either place. Only lanes of one stage with a loss are changed. Other lanes keep their
/// order, and all tasks run as early as inputs and windows allow.
std::vector<Executed> hide_sums(Machine& machine, const std::vector<Batches>& batches,
                                std::vector<Executed> executed);

}  // namespace maestro::schedule
