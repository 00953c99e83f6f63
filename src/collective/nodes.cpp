#include "collective/nodes.hpp"

#include <map>

namespace maestro::collective {

Nodes::Nodes(const std::vector<int>& node_of) {
    std::map<int, int> number;  // of a node by what the caller calls it
    for (int rank = 0; rank < static_cast<int>(node_of.size()); ++rank) {
        const auto [at, added] =
            number.emplace(node_of[static_cast<std::size_t>(rank)], static_cast<int>(ranks_.size()));
        if (added) ranks_.emplace_back();
        std::vector<int>& there = ranks_[static_cast<std::size_t>(at->second)];
        node_of_.push_back(at->second);
        position_.push_back(static_cast<int>(there.size()));
        there.push_back(rank);
    }
    for (const std::vector<int>& there : ranks_) {
        const auto [shards, is_new] = shards_.try_emplace(there.size(), there.size());
        for (int rank = 0; rank < ranks() && is_new; ++rank)
            shards->second[static_cast<std::size_t>(position(rank)) % there.size()].push_back(rank);
    }
}

int Nodes::proxy(int node, int rank) const {
    const std::span<const int> there = on(node);
    return there[static_cast<std::size_t>(position(rank)) % there.size()];
}

std::span<const int> Nodes::shards_of_proxy(int rank) const {
    return shards_.at(on(of(rank)).size())[static_cast<std::size_t>(position(rank))];
}

std::vector<int> Nodes::peers(int rank) const {
    const std::span<const int> there = on(of(rank));
    std::vector<int> others;
    for (std::size_t i = 1; i < there.size(); ++i)
        others.push_back(there[(static_cast<std::size_t>(position(rank)) + i) % there.size()]);
    return others;
}

}  // namespace maestro::collective
