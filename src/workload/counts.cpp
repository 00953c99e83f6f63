#include "workload/counts.hpp"

#include <algorithm>

#include "graph/grid.hpp"
#include "workload/cost_model.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::workload {

std::vector<StepCounts> step_counts(const Scenario& scenario, const SampleTable& table, Probes& probes,
                                    std::span<const std::int64_t> ids) {
    const graph::SectionGraph& graph = scenario.graph;
    // On a device that does one operation, or moves one byte, per second, seconds are counts.
    config::Cluster computes, moves, sends;
    computes.device.element_flops = 1;
    moves.device.memory_bandwidth = 1;
    for (config::Cluster* cluster : {&computes, &moves, &sends})
        cluster->node.bandwidth = cluster->network.bandwidth = 1;
    std::vector<StepCounts> counts(graph.sections.size());
    const auto add = [&](double StepCounts::*what, const config::Cluster& cluster,
                         const parallel::MeshLinks& links = {}) {
        Scenario on_cluster = scenario;
        on_cluster.cluster = cluster;
        const CostModel model(on_cluster, table, probes, links);
        for (const std::int64_t id : ids) {
            const schedule::SampleCost cost = model.of(id);
            for (std::size_t s = 0; s < counts.size(); ++s)
                counts[s].*what += graph.sections[s].layout.lane_ranks() *
                                   (cost.stages[s].forward_s + cost.stages[s].backward_s);
        }
    };
    const auto any = [&](int graph::Layout::*degree) {
        return std::any_of(graph.sections.begin(), graph.sections.end(),
                           [&](const graph::Section& s) { return s.layout.*degree > 1; });
    };
    const parallel::LinkCost counted{0, 1};
    add(&StepCounts::flops, computes);
    add(&StepCounts::memory_bytes, moves);
    if (any(&graph::Layout::tp)) add(&StepCounts::tp_bytes, sends, {.tp = counted, .cp = {}, .data = {}});
    if (any(&graph::Layout::cp)) add(&StepCounts::cp_bytes, sends, {.tp = {}, .cp = counted, .data = {}});
    for (std::size_t s = 0; s < counts.size(); ++s) {
        const int section = static_cast<int>(s);
        const model::Role role = role_of(scenario, section);
        const graph::Layout& layout = graph.sections[s].layout;
        for (const std::int64_t id : ids)
            for (const graph::Edge& e : graph.edges)
                if (e.from == section && !graph::passes_pointer(graph, e))
                    counts[s].edge_bytes +=
                        (e.gradient ? 2.0 : 1.0) *
                        static_cast<double>(table.output_rows(id, section) * role.output_width) *
                        static_cast<double>(size_of(role.compute));
        const auto meta = backend::make_meta();
        const auto module =
            model::make_module(*meta, scenario.models[section], role, meta_mesh_of(scenario, section));
        for (const parallel::ParameterGroup& group : module->parameters().groups()) {
            if (!group.trainable()) continue;
            for (const parallel::Axis axis : parallel::kReplicaAxes) {  // an all-reduce, once a step
                const int ranks = module->mesh().group(axis).size();
                counts[s].tp_bytes += 2.0 * sizeof(float) * static_cast<double>(group.replicated(axis)) *
                                      (ranks - 1) / ranks * layout.ranks();
            }
            // Each of n ranks sends (n - 1) / n of the array, in the reduce-scatter and again in the
            // all-gather.
            const double bytes = sizeof(float) * static_cast<double>(group.size());
            counts[s].dp_bytes += 2 * bytes * (layout.dp * layout.cp - 1) * layout.tp;
        }
    }
    return counts;
}

}  // namespace maestro::workload
