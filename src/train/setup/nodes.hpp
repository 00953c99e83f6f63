// The nodes on which a run lays its sections.
#pragma once

#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "config/deck.hpp"
#include "workload/scenario.hpp"

namespace maestro::train {

/// Collective. Returns the scenario with its sections laid on the nodes of the launch, if it has as many
/// ranks as the deck needs. An emulated device has the nodes of its cluster, with which the scenario then
/// comes. Throws what reading the cluster file throws, on all ranks.
workload::Scenario lay_on_nodes(const comm::Communicator& world, const comm::Topology& topology,
                                const config::Deck& deck, workload::Scenario scenario);

}  // namespace maestro::train
