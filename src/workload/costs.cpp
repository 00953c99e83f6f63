#include "workload/costs.hpp"

#include <algorithm>

#include "graph/grid.hpp"
#include "schedule/execution/interleaving.hpp"

namespace maestro::workload {

backend::DeviceRates rates_of(const config::Device& device) {
    const auto gemms = [](const std::vector<config::GemmRate>& of) {
        std::vector<backend::DeviceRates::GemmRate> made;
        for (const config::GemmRate& p : of) made.push_back({p.side, p.fp32_flops, p.bf16_flops});
        return made;
    };
    backend::DeviceRates rates{.gemm_rates = gemms(device.gemm_rates),
                               .grouped_rates = gemms(device.grouped_rates),
                               .element_flops = device.element_flops,
                               .bytes = device.memory_bandwidth,
                               .operation_s = device.operation_s,
                               .launch_s = device.launch_s,
                               .expert_imbalance = device.expert_imbalance,
                               .expert_row_s = device.expert_row_s,
                               .expert_choice_s = device.expert_choice_s};
    for (const config::AttentionRate& p : device.attention_rates)
        rates.attention_rates.push_back(
            {p.head_dim, p.length, p.fp32_flops, p.bf16_flops, p.backward_fp32_flops, p.backward_bf16_flops});
    return rates;
}

namespace {
/// Micro-batches beyond those of 1F1B that a stage of a pipeline may have in flight. They fill the pauses
/// that unlike micro-batches leave (docs/scheduling.md has the figures).
constexpr int kSpareMicroBatches = 2;
}  // namespace

schedule::Problem problem_of(const Scenario& scenario) {
    const graph::SectionGraph& graph = scenario.graph;
    schedule::Problem problem;
    problem.lanes = graph.lanes;
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage) {
        const graph::Section& s = graph.section_of(stage);
        problem.stages.push_back({.section = graph.stages[stage].section,
                                  .groups = s.replica_groups(),
                                  .first_lane = graph::lane_of(graph, stage, 0),
                                  .lane_stride = s.layout.pp,
                                  .chunks = s.layout.chunks,
                                  .parts = s.lane_replicas,
                                  .micro_batch = s.lane_micro_batch(),
                                  .window = window_of(scenario, stage),
                                  .backward = s.backward,
                                  .loss = s.loss && stage == graph.last_stage(graph.stages[stage].section)});
    }
    for (const graph::StageEdge& e : graph.stage_edges)
        problem.edges.push_back({e.from, e.to, e.gradient,
                                 scenario.cluster ? link_from(graph, *scenario.cluster, e.from).latency_s : 0,
                                 graph::passes_pointer(graph, e)});
    return problem;
}

StageWindows windows_of(const Scenario& scenario, int stage) {
    const graph::Section& s = scenario.graph.section_of(stage);
    return windows_of(s.layout, s.loss, scenario.graph.stages[stage].index, scenario.global_batch);
}

StageWindows windows_of(const graph::Layout& layout, bool loss, int index, std::int64_t global_batch) {
    // No replica has more micro-batches than the step has samples.
    const int most = static_cast<int>(std::min<std::int64_t>(global_batch, graph::kMaxInFlight));
    const int least = schedule::interleaved_window(layout.pp, layout.chunks, index, most);
    if (!loss || index == layout.stage_count() - 1) return {least, 0};
    // The lists of interleaved chunks do not use more.
    return {least, std::min(most, least + (layout.chunks == 1 ? kSpareMicroBatches : 0))};
}

int window_of(const Scenario& scenario, int stage) {
    const graph::Section& s = scenario.graph.section_of(stage);
    // A stage holds a micro-batch until the stages that follow have returned it. The section's window counts
    // what its last stage has in flight.
    const StageWindows windows = windows_of(scenario, stage);
    if (s.window > 0) return std::min(s.window + windows.least - 1, graph::kMaxInFlight);
    return windows.most;
}

int node_of(const config::Cluster& cluster, int rank) {
    return rank / static_cast<int>(cluster.ranks_per_node);
}

const config::Link& link_among(const config::Cluster& cluster, int first, int last) {
    return node_of(cluster, first) == node_of(cluster, last) ? cluster.node : cluster.network;
}

const config::Link& link_from(const graph::SectionGraph& graph, const config::Cluster& cluster, int stage) {
    // A task has one transfer time for all of its edges: a slower link to any consumer counts for all.
    const int from = graph::first_rank_of(graph, stage);
    const config::Link* link = &cluster.node;
    const auto reach = [&](int a, int b) {
        if (&link_among(cluster, std::min(a, b), std::max(a, b)) == &cluster.network) link = &cluster.network;
    };
    for (const graph::StageEdge& e : graph.stage_edges) {
        if (e.from != stage) continue;
        const int to = graph::first_rank_of(graph, e.to);
        if (!e.within_section()) {
            // A replica of either section may serve any of the other's, as the graph lays them out.
            reach(from, graph::last_rank_of(graph, e.to));
            reach(graph::last_rank_of(graph, stage), to);
            continue;
        }
        const graph::Section& section = graph.section_of(stage);
        const int ranks = section.lane_ranks(),
                  stride = section.layout.pp * ranks;  // from a group to the next
        for (int group = 0; group < section.replica_groups(); ++group)
            for (const int end : {0, ranks - 1})
                reach(from + group * stride + end, to + group * stride + ranks - 1 - end);
    }
    return *link;
}

}  // namespace maestro::workload
