// Who sends which rows to whom over an edge in a step: known to all ranks from the plan and the samples'
// lengths.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "channel/route.hpp"
#include "schedule/step_plan.hpp"
#include "workload/layout.hpp"

namespace maestro::train {

/// How the ranks of one end hold the rows of the edge, for a micro-batch of these samples.
using Held = std::function<workload::RowPlacements(std::span<const std::int64_t> samples)>;

/// Pure. A sample that only one of the sections `from` and `to` sees has no route; its rows count all the
/// same, where they lie in its micro-batch. Throws Error(broken_invariant) where the ends hold unlike rows of
/// a sample.
std::vector<channel::Route> routes(const schedule::StepPlan& plan, int from, int to, const Held& produced,
                                   const Held& consumed);

/// A section at one end of an edge, and how its replicas are cut.
struct EdgeSide {
    int section = 0;
    parallel::Degrees degrees = {};
};
std::vector<channel::Route> routes(const schedule::StepPlan& plan, EdgeSide from, EdgeSide to,
                                   const workload::SampleTable& table);

}  // namespace maestro::train
