#include "workload/costs.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "graph/grid.hpp"

namespace maestro::workload {

backend::DeviceRates rates_of(const config::Device& device) {
    backend::DeviceRates rates{.gemm_rates = {},
                               .element_flops = device.element_flops,
                               .bytes = device.memory_bandwidth,
                               .operation_s = device.operation_s};
    for (const config::GemmRate& p : device.gemm_rates)
        rates.gemm_rates.push_back({p.side, p.fp32_flops, p.bf16_flops});
    return rates;
}

schedule::Problem problem_of(const Scenario& scenario) {
    const graph::SectionGraph& graph = scenario.graph;
    // Costs, memory and metrics are still by section.
    MAESTRO_CHECK(graph.stages.size() == graph.sections.size(), "{} stages of {} sections",
                  graph.stages.size(), graph.sections.size());
    schedule::Problem problem;
    problem.lanes = graph.lanes;
    for (const graph::Stage& stage : graph.stages) {
        const graph::Section& s = graph.sections[stage.section];
        const int following = s.layout.pp - 1 - stage.index;
        // A stage of the section with the loss holds a micro-batch until the stages that follow have returned
        // it. In an upstream section it also waits for the sections that follow: the section's window counts
        // these, and no limit stays none.
        const int window = s.loss && following > 0 ? following + 1 : s.window > 0 ? s.window + following : 0;
        problem.stages.push_back({.section = stage.section,
                                  .replicas = s.layout.dp,
                                  .first_lane = graph::lane_of(s, 0, stage.index),
                                  .lane_stride = s.layout.pp,
                                  .micro_batch = s.micro_batch,
                                  .window = window,
                                  .backward = s.backward,
                                  .loss = s.loss && following == 0});
    }
    for (const graph::StageEdge& e : graph.stage_edges) {
        const int from = graph.stages[e.from].section;
        problem.edges.push_back({e.from, e.to, e.gradient,
                                 scenario.cluster ? link_from(graph, *scenario.cluster, from).latency_s : 0,
                                 e.edge >= 0 && graph::passes_pointer(graph, graph.edges[e.edge])});
    }
    return problem;
}

const config::Link& link_among(const config::Cluster& cluster, int first, int last) {
    const auto node_of = [&](int rank) { return rank / static_cast<int>(cluster.ranks_per_node); };
    return node_of(first) == node_of(last) ? cluster.node : cluster.network;
}

const config::Link& link_from(const graph::SectionGraph& graph, const config::Cluster& cluster, int section) {
    // A task has one transfer time for all of its edges: a slower link to any consumer counts for all.
    int first = graph.world, last = 0;
    const auto reach = [&](int s) {
        const graph::Section& other = graph.sections[s];
        first = std::min(first, other.first_rank);
        last = std::max(last, other.first_rank + other.layout.ranks() - 1);
    };
    reach(section);
    for (const graph::Edge& e : graph.edges)
        if (e.from == section) reach(e.to);
    return link_among(cluster, first, last);
}

}  // namespace maestro::workload
