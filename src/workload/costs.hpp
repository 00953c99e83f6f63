// The scheduling problem of a scenario without its samples, and the rates and links of a cluster.
#pragma once

#include "backend/backend.hpp"
#include "config/cluster.hpp"
#include "graph/section_graph.hpp"
#include "schedule/problem/problem.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// Returns stages, edges and lanes for the scheduler, without samples; windows as in the scenario, 0: none.
/// Without a cluster edges have no latency.
schedule::Problem problem_of(const Scenario& scenario);
backend::DeviceRates rates_of(const config::Device& device);
/// Returns the node of a rank of the world.
int node_of(const config::Cluster& cluster, int rank);
/// Returns the link among the ranks `first` to `last` of the world: the node's if they are all on one node,
/// otherwise the network's.
const config::Link& link_among(const config::Cluster& cluster, int first, int last);
/// Returns the link of the edges out of a stage, among its ranks and those of the stages that it feeds.
const config::Link& link_from(const graph::SectionGraph& graph, const config::Cluster& cluster, int stage);
/// Micro-batches that a replica group of a stage has in flight.
struct StageWindows {
    int least = 1;  ///< with fewer, the pipeline would pause even if all micro-batches were equal
    int most = 0;   ///< more would be of no use; 0: no limit
};
/// Returns the windows that a stage may have if the deck leaves its section's open. A limit follows only from
/// the pipeline of a section with a loss.
StageWindows windows_of(const Scenario& scenario, int stage);
/// Returns that of the `index`-th stage of a section with this layout, which computes the loss or does not.
StageWindows windows_of(const graph::Layout& layout, bool loss, int index, std::int64_t global_batch);
/// Returns how many micro-batches a replica group of the stage may have in flight if memory does not limit
/// them further; 0: no limit.
int window_of(const Scenario& scenario, int stage);

}  // namespace maestro::workload
