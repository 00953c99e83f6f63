#include "train/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "graph/grid.hpp"

namespace maestro::train {

namespace {

/// As wide as the widest cell of each column; the first and the last to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
    std::vector<std::size_t> widths(rows.front().size(), 0);
    for (const auto& row : rows)
        for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    std::string text;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t c = 0; c < row.size(); ++c) {
            const bool words = c == 1 || c == 2;  // host and section
            line += words ? fmt::format("  {:<{}}", row[c], widths[c])
                          : fmt::format("  {:>{}}", row[c], widths[c]);
        }
        text += (text.empty() ? "" : "\n") + line;
    }
    return text;
}

}  // namespace

std::string placement_table(const Launch& launch, const workload::MemoryPlan& plan) {
    const graph::SectionGraph& graph = launch.deck.graph;
    const bool placed = launch.world.size() == graph.world;
    std::vector<std::string> hosts(static_cast<std::size_t>(graph.world), "-");
    if (placed) hosts = launch.world.gather(launch.topology.host);
    hosts.resize(static_cast<std::size_t>(graph.world));  // empty but on rank 0
    std::vector<std::vector<std::string>> rows = {
        {"rank", "host", "section", "replica", "cp", "tp", "memory"}};
    for (int rank = 0; rank < graph.world; ++rank) {
        bool first = true;
        for (const graph::Section& section : graph.sections) {
            const auto place = graph::place_of(section, rank);
            if (!place) continue;
            const double memory = workload::memory_of(plan, graph, rank).total();
            rows.push_back({first ? fmt::format("{}", rank) : "", first ? hosts[rank] : "", section.name,
                            fmt::format("{} of {}", place->replica, section.layout.dp),
                            fmt::format("{} of {}", place->cp, section.layout.cp),
                            fmt::format("{} of {}", place->tp, section.layout.tp),
                            first ? fmt::format("{:.1f} MiB", memory / (1 << 20)) : ""});
            first = false;
        }
    }
    return aligned(rows);
}

}  // namespace maestro::train
