// Where this rank runs: host, cores, neighbours, and how many threads that leaves it. Read once at the start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace maestro::comm {

struct Topology {
    std::string host;
    int cores = 1;      ///< physical cores that the ranks of this node may use together
    int all_cores = 1;  ///< that the node has for them, were they not bound by the launcher
    int ranks_on_node = 1;
    int rank_on_node = 0;
    int threads = 1;              ///< of this rank: cores / ranks, at least 1
    bool bound = false;           ///< threads have cores of their own (by us or the launcher)
    std::vector<int> processors;  ///< logical processors that this rank may run on

    /// What to tell the user where the launcher has left cores unused; "" where it has not.
    std::string note() const;
    std::string describe() const;  ///< "host a, rank 1 of 2 here, 4 threads on processors 4-7"
};

/// Collective over `world`. If the launcher gave the ranks different cores, these are kept; otherwise, when
/// there are no more ranks than cores, the calling thread (and the threads it starts later) is bound to this
/// rank's share.
Topology place_rank(const Communicator& world);

/// Collective. Do all ranks run under one kernel (one boot id), and so by one steady clock?
bool share_a_clock(const Communicator& world);
/// One line for the log: MPI and hwloc, as running.
std::string library_versions();
/// Tells builds apart: a hash of the program file and of the MPI library's version.
std::uint64_t build_identity();
/// Collective. Throws Error(builds_differ, all_ranks) naming the ranks whose program is not rank 0's.
void check_same_build(const Communicator& world);

}  // namespace maestro::comm
