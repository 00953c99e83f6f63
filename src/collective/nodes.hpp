// On which node each rank of a process group runs, and which rank of a node handles what crosses its border.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace maestro::collective {

class Nodes {
public:
    /// All ranks on one node.
    explicit Nodes(int ranks = 1) : Nodes(std::vector<int>(static_cast<std::size_t>(ranks), 0)) {}
    /// `node_of`: a number for each rank, equal for ranks on one node. Nodes are ordered by their lowest
    /// rank.
    explicit Nodes(const std::vector<int>& node_of);

    int ranks() const { return static_cast<int>(node_of_.size()); }
    int count() const { return static_cast<int>(ranks_.size()); }
    int of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
    /// The ranks of a node, ascending.
    std::span<const int> on(int node) const { return ranks_[static_cast<std::size_t>(node)]; }
    int position(int rank) const { return position_[static_cast<std::size_t>(rank)]; }  ///< on its node
    /// Whether what crosses the border between nodes would be less if it first were summed within a node, or
    /// afterwards distributed there.
    bool hierarchical() const { return count() > 1 && ranks() > count(); }
    /// The rank of `node` that exchanges with `rank` what belongs to this rank's shard: `rank` itself on its
    /// own node, and on others the rank with the same position on the node, modulo the number of ranks there.
    int proxy(int node, int rank) const;
    /// The ranks whose shards this rank exchanges for its node: those r with proxy(of(rank), r) == rank,
    /// ascending.
    std::span<const int> shards_of_proxy(int rank) const;
    /// The other ranks of this rank's node, beginning with the one after it: if all began with the first rank
    /// of the node, its link would be the bottleneck.
    std::vector<int> peers(int rank) const;
    bool operator==(const Nodes&) const = default;

private:
    std::vector<int> node_of_;             ///< by rank, numbered from 0 in the order of lowest ranks
    std::vector<std::vector<int>> ranks_;  ///< by node
    std::vector<int> position_;            ///< by rank: among the ranks of its node
    /// By the number of ranks of a node, and the position of a rank there: see shards_of_proxy().
    std::map<std::size_t, std::vector<std::vector<int>>> shards_;
};

}  // namespace maestro::collective
