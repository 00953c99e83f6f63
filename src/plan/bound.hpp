// Bounds of a step from below, by which the search leaves out plans that cannot be the fastest.
#pragma once

#include "graph/section_graph.hpp"
#include "workload/estimate.hpp"

namespace maestro::plan {

/// Returns seconds that no step takes less than, with whatever order of its tasks: sums of gradients, updates
/// and gathers of weights included, as workload::running_step_seconds() counts them.
double bound_of(const workload::StepEstimate& step, const graph::SectionGraph& graph);

}  // namespace maestro::plan
