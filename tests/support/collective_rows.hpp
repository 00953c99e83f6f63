// Rows of a cluster file's [[collective]] that say what a link says.
#pragma once

#include <vector>

#include "collective/collective_times.hpp"
#include "collective/process_group.hpp"

namespace maestro::testing_support {

/// The rows of one kind: what a meta group counts where each rank exchanges (n - 1) / n of the bytes over the
/// link. The smallest has one byte, so that its time is the latency but for 1 / bandwidth.
inline std::vector<collective::CollectiveRow> rows_of_link(collective::CollectiveKind kind, int ranks,
                                                           int nodes, const collective::LinkCost& link) {
    // An all-reduce is a reduce-scatter and an all-gather.
    const double exchanges = kind == collective::CollectiveKind::all_reduce ? 2 : 1;
    std::vector<collective::CollectiveRow> rows;
    for (const double bytes : {1.0, 1e3, 1e6, 1e9})
        rows.push_back({kind, ranks, nodes, bytes,
                        exchanges * (link.latency_s + bytes * (ranks - 1) / ranks / link.bandwidth)});
    return rows;
}

/// The same of all kinds.
inline std::vector<collective::CollectiveRow> rows_of_link(int ranks, int nodes,
                                                           const collective::LinkCost& link) {
    std::vector<collective::CollectiveRow> rows;
    for (std::size_t kind = 0; kind < collective::kCollectiveNames.size(); ++kind)
        for (const collective::CollectiveRow& row :
             rows_of_link(static_cast<collective::CollectiveKind>(kind), ranks, nodes, link))
            rows.push_back(row);
    return rows;
}

}  // namespace maestro::testing_support
