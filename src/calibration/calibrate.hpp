// `maestro calibrate`: measures this machine and writes a cluster file.
#pragma once

#include <optional>
#include <string>

#include "backend/device.hpp"
#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "config/cluster.hpp"
#include "config/deck.hpp"
#include "workload/scenario.hpp"

namespace maestro::calibration {

/// Collective. All ranks measure at the same time, because they share the machine when they train; a rate is
/// the median over the ranks. Links are measured between rank 0 and the first other rank of its node, and of
/// another node. If there is no other node, the link of the node counts for the network too; with a single
/// rank, a copy in memory counts for the link of the node.
config::Cluster measure_machine(const comm::Communicator& world, const comm::Topology& topology);

/// Returns the text of a cluster file (docs/deck.md).
std::string to_toml(const config::Cluster& cluster, const std::string& comment);

/// A deck whose layers are measured as well, and the device of this rank.
struct MeasuredDeck {
    config::Deck deck;
    workload::Scenario scenario;
    backend::Device device;
};
/// The command. Collective. With a deck all rates are those of its device, and the cluster file has the
/// corrections of its sections. Rank 0 writes `path`; Error(cannot_create, all_ranks) if it cannot.
void run_calibration(const comm::Communicator& world, const comm::Topology& topology, const std::string& path,
                     const std::optional<MeasuredDeck>& measured = {});

}  // namespace maestro::calibration
