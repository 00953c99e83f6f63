// `maestro calibrate`: measures this machine and writes a cluster file.
#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "config/cluster.hpp"

namespace maestro::calibration {

/// Collective. All ranks measure at the same time, because they share the machine when they train; a rate is
/// the median over the ranks. Links are measured between rank 0 and the first other rank of its node, and of
/// another node. If there is no other node, the link of the node counts for the network too; with a single
/// rank, a copy in memory counts for the link of the node.
config::Cluster measure_machine(const comm::Communicator& world, const comm::Topology& topology);

/// Returns the text of a cluster file (docs/deck.md).
std::string to_toml(const config::Cluster& cluster, const std::string& comment);

/// The command. Rank 0 writes `path`; Error(cannot_create, all_ranks) if it cannot.
void run_calibration(const comm::Communicator& world, const comm::Topology& topology,
                     const std::string& path);

}  // namespace maestro::calibration
