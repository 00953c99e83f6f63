// Where this rank runs: its host, cores, the other ranks there, and its number of threads. Read once at the
// start.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace maestro::comm {

struct Topology {
    std::string host;
    int cores = 1;      ///< physical cores that the ranks of this node may use together
    int all_cores = 1;  ///< cores of the node that they could use if the launcher had not bound them
    int ranks_on_node = 1;
    int rank_on_node = 0;
    std::vector<int> nodes;  ///< of each rank of the world: the lowest rank on its node
    int ranks_per_node = 0;  ///< of all nodes: see common_ranks_per_node()
    int threads = 1;         ///< of this rank: cores / ranks_on_node, at least 1
    bool bound = false;      ///< threads are bound to dedicated cores, by this program or by the launcher
    std::vector<int> processors;       ///< logical processors that this rank may run on
    std::vector<int> node_processors;  ///< and those of all ranks of this node together

    /// A hint for the user if the launcher leaves cores unused; otherwise "".
    std::string note() const;
    std::string describe() const;  ///< "host a, rank 1 of 2 here, 4 threads on processors 4-7"
};

/// Collective over `world`. If the launcher gave the ranks different cores, these are kept; otherwise, when
/// there are no more ranks than cores, the calling thread (and the threads it starts later) is bound to this
/// rank's share.
Topology place_rank(const Communicator& world);

/// Collective over `ranks`, of which `node` has those that are on this rank's node. Returns, for each of
/// them, the lowest one on its node.
std::vector<int> lowest_on_nodes(const Communicator& ranks, const Communicator& node);
/// Returns how many ranks every node has, where ranks ascend node by node and only the last node has fewer;
/// otherwise 0. `first_ranks[rank]`: the lowest rank on its node.
int common_ranks_per_node(std::span<const int> first_ranks);

/// Collective. Whether all ranks run under one kernel (one boot id), and so share a steady clock.
bool share_a_clock(const Communicator& world);
/// One line for the log: the running versions of MPI and hwloc.
std::string library_versions();
/// Identifies the build: a hash of the program file and of the version of the MPI library.
std::uint64_t build_identity();
/// Collective. Throws Error(builds_differ, all_ranks), with the ranks whose build is not that of rank 0.
void check_same_build(const Communicator& world);

}  // namespace maestro::comm
