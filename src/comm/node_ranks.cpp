// The functions of topology.hpp that ask MPI alone which ranks are on which node.
#include "comm/topology.hpp"

namespace maestro::comm {

std::vector<int> lowest_on_nodes(const Communicator& ranks, const Communicator& node) {
    return ranks.allgather(node.allgather(ranks.rank()).front());
}

int common_ranks_per_node(std::span<const int> first_ranks) {
    int count = 0;  // of the first node
    while (count < std::ssize(first_ranks) && first_ranks[count] == 0) ++count;
    for (int rank = 0; rank < std::ssize(first_ranks); ++rank)
        if (first_ranks[rank] != rank - rank % count) return 0;
    return count;
}

}  // namespace maestro::comm
