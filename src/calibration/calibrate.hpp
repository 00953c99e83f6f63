// `maestro calibrate`: measures this machine and writes a cluster file.
#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "config/cluster.hpp"

namespace maestro::calibration {

/// Collective. All ranks measure at the same time, because they share the machine when they train; rates are
/// the median rank's. Links are measured between rank 0 and the first other rank of its node, and of another
/// node; where there is none the node's link stands for the network, and without a second rank a copy in
/// memory stands for the node's.
config::Cluster measure_machine(const comm::Communicator& world, const comm::Topology& topology);

/// As the text of a cluster file (docs/deck.md).
std::string to_toml(const config::Cluster& cluster, const std::string& comment);

/// The command. Rank 0 writes `path`; Error(cannot_create, all_ranks) where it cannot.
void run_calibration(const comm::Communicator& world, const comm::Topology& topology,
                     const std::string& path);

}  // namespace maestro::calibration
