#include "train/setup/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "graph/grid.hpp"
#include "workload/counts.hpp"
#include "workload/data_order.hpp"

namespace maestro::train {

std::string aligned(const std::vector<std::vector<std::string>>& rows, std::size_t words_begin,
                    std::size_t words_end) {
    std::vector<std::size_t> widths(rows.front().size(), 0);
    for (const auto& row : rows)
        for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    std::string text;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t c = 0; c < row.size(); ++c) {
            const bool words = c >= words_begin && c < words_end;
            line += words ? fmt::format("  {:<{}}", row[c], widths[c])
                          : fmt::format("  {:>{}}", row[c], widths[c]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += (text.empty() ? "" : "\n") + line;
    }
    return text;
}

std::string placement_table(const RunContext& context, const workload::MemoryPlan& plan) {
    const graph::SectionGraph& graph = context.scenario.graph;
    std::vector<std::string> hosts(static_cast<std::size_t>(graph.world), "-");
    if (context.world.size() == graph.world) hosts = context.world.gather(context.topology.host);
    if (context.world.rank() != 0) return "";
    struct Degree {
        const char* name;
        int graph::Layout::*degree;
        int graph::Place::*at;
    };
    std::vector<Degree> degrees{{"replica", &graph::Layout::dp, &graph::Place::replica}};
    for (const Degree& d : {Degree{"pp", &graph::Layout::pp, &graph::Place::pp},
                            Degree{"cp", &graph::Layout::cp, &graph::Place::cp},
                            Degree{"tp", &graph::Layout::tp, &graph::Place::tp}})
        if (std::any_of(graph.sections.begin(), graph.sections.end(),
                        [&](const graph::Section& s) { return s.layout.*d.degree > 1; }))
            degrees.push_back(d);
    const bool nodes = graph.ranks_per_node > 0 && graph.ranks_per_node < graph.world;
    std::vector<std::vector<std::string>> rows = {{"rank", "memory", "host", "section"}};
    if (nodes) rows.front().insert(rows.front().begin() + 1, "node");
    for (const Degree& d : degrees) rows.front().push_back(d.name);
    for (int rank = 0; rank < graph.world; ++rank) {
        const double mib = workload::memory_of(plan, graph, rank).needed() / (1 << 20);
        std::vector<std::string> row{fmt::format("{}", rank), fmt::format("{:.1f} MiB", mib),
                                     hosts[static_cast<std::size_t>(rank)]};
        if (nodes) row.insert(row.begin() + 1, fmt::format("{}", graph::node_of(graph, rank)));
        const std::size_t words = row.size();
        for (const graph::Section& section : graph.sections) {
            const auto place = graph::place_of(section, rank);
            if (!place) continue;
            row.push_back(section.name);
            for (const Degree& d : degrees)
                row.push_back(fmt::format("{} of {}", *place.*d.at, section.layout.*d.degree));
            rows.push_back(row);
            row.assign(words, "");  // another section of the same rank
        }
    }
    const std::size_t host = nodes ? 3 : 2;
    return aligned(rows, host, host + 2);  // and section
}

std::string traffic_table(const workload::Scenario& scenario, const workload::SampleTable& table) {
    workload::DataOrder order(scenario.seed, table.size(), scenario.global_batch);
    workload::Probes probes;
    const auto counts = workload::step_counts(scenario, table, probes, order.batch(0));
    std::vector<std::vector<std::string>> rows = {
        {"MB sent in a step", "tp", "cp", "ep", "pp", "dp", "edges"}};
    const auto mb = [](double bytes) { return fmt::format("{:.2f}", bytes / 1e6); };
    for (std::size_t s = 0; s < counts.size(); ++s)
        rows.push_back({scenario.graph.sections[s].name, mb(counts[s].tp_bytes), mb(counts[s].cp_bytes),
                        mb(counts[s].ep_bytes), mb(counts[s].pp_bytes), mb(counts[s].dp_bytes),
                        mb(counts[s].edge_bytes)});
    return aligned(rows, 0, 1);
}

}  // namespace maestro::train
