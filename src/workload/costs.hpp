// What the scheduler knows of a deck without its samples, and the rates and links of a cluster.
#pragma once

#include "backend/backend.hpp"
#include "config/cluster.hpp"
#include "config/deck.hpp"
#include "schedule/problem.hpp"

namespace maestro::workload {

/// Sections, edges and ranks for the scheduler, without samples; windows as in the deck, 0: none. Without a
/// cluster edges have no latency.
schedule::Problem problem_of(const graph::SectionGraph& graph, const config::Cluster* cluster = nullptr);
backend::DeviceRates rates_of(const config::Device& device);
/// Among the ranks `first` to `last` of the world: that of a node if one holds them all, else the network.
const config::Link& link_among(const config::Cluster& cluster, int first, int last);
/// Of the edges out of a section: among its ranks and those of the sections that it feeds.
const config::Link& link_from(const graph::SectionGraph& graph, const config::Cluster& cluster, int section);

}  // namespace maestro::workload
