// Which rows of which sample go from rank to rank over an edge in a step. Every rank computes its own from
// the plan and the lengths of the samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "channel/route.hpp"
#include "schedule/problem/step_plan.hpp"
#include "workload/layout.hpp"

namespace maestro::train {

/// How the ranks of a lane at one end of the edge hold the edge's rows of a micro-batch.
using RowLayout = std::function<workload::RowPlacements(const schedule::MicroBatch& micro_batch)>;

/// The replica groups of a rank at the two ends of an edge; empty where it holds nothing of that section.
struct EndGroups {
    std::optional<int> producer, consumer;
};

/// Pure. The routes of a step, in an order that is the same on every rank. A sample that only one of the
/// sections `from` and `to` works on has no route, but its rows count in the layout of its micro-batch.
/// With `local`, those that begin or end in one of these groups, and only the micro-batches of groups
/// that serve them or are served by them are read: the time grows with the rank's share of the batch. Throws
/// Error(broken_invariant) where the two ends hold different rows of a sample, or where a group works on a
/// sample of one that does not serve it.
std::vector<channel::Route> routes(const schedule::StepPlan& plan, int from, int to,
                                   const RowLayout& produced, const RowLayout& consumed,
                                   const std::optional<EndGroups>& local = {});

/// A section at one end of an edge, and how the ranks of its groups share the rows. Each part of a lane has
/// the rows of its samples.
struct EdgeSide {
    int section = 0;
    parallel::Degrees degrees = {};
};
/// With the same section at both ends: the edge between two of its stages, over which every rank passes its
/// rows of the residual stream on to the one at the same place.
std::vector<channel::Route> routes(const schedule::StepPlan& plan, EdgeSide from, EdgeSide to,
                                   const workload::SampleTable& table,
                                   const std::optional<EndGroups>& local = {});

}  // namespace maestro::train
