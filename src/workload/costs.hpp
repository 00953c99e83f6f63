// The cost model: the work of each section, counted by its own code on the meta backend at a few lengths, and
// turned into seconds by the rates of a device.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "config/cluster.hpp"
#include "config/deck.hpp"
#include "schedule/problem.hpp"
#include "workload/sample_table.hpp"

namespace maestro::workload {

/// Sections, edges and ranks for the scheduler, without samples; windows as in the deck, 0: none. Without a
/// cluster edges have no latency.
schedule::Problem problem_of(const graph::SectionGraph& graph, const config::Cluster* cluster = nullptr);
/// One line of the log: the work per rank of each section over the samples, as a share of the largest.
std::string describe_load(const config::Deck& deck, const std::vector<schedule::SampleCost>& costs);
/// Of every sample of the table, by its id. Seconds on the cluster's device, transfers between its ranks
/// included; without a cluster at a nominal rate, of which only ratios mean something.
std::vector<schedule::SampleCost> sample_costs(const config::Deck& deck, std::int32_t marker,
                                               const SampleTable& table,
                                               const config::Cluster* cluster = nullptr);
backend::DeviceRates rates_of(const config::Device& device);
/// Among the ranks `first` to `last` of the world: that of a node if one holds them all, else the network.
const config::Link& link_among(const config::Cluster& cluster, int first, int last);
/// Of the edges out of a section: among its ranks and those of the sections that it feeds.
const config::Link& link_from(const graph::SectionGraph& graph, const config::Cluster& cluster, int section);

}  // namespace maestro::workload
