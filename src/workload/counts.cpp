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
        const CostModel model(on_cluster, table, probes,
                              {.links =
                                   [&](int stage) {
                                       parallel::MeshLinks of_stage = links;
                                       of_stage.expert_nodes = widest_expert_nodes_of(scenario, stage);
                                       return of_stage;
                                   },
                               .samples = ids,
                               .mixing = false});
        for (const std::int64_t id : ids) {
            const schedule::SampleCost cost = model.of(id);
            for (std::size_t s = 0; s < cost.stages.size(); ++s)
                counts[graph.stages[s].section].*what +=
                    graph.section_of(static_cast<int>(s)).layout.stage_ranks() *
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
    if (any(&graph::Layout::ep) || any(&graph::Layout::etp)) {
        // Links within nodes and between them work at the same time, so that each is counted alone.
        add(&StepCounts::ep_bytes, sends, {.tp = {}, .cp = {}, .data = {}, .ep = counted});
        add(&StepCounts::ep_bytes, sends, {.tp = {}, .cp = {}, .data = {}, .network = counted});
    }
    if (any(&graph::Layout::cp)) add(&StepCounts::cp_bytes, sends, {.tp = {}, .cp = counted, .data = {}});
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage) {
        const int section = graph.stages[stage].section;
        StepCounts& count = counts[section];
        const model::Role role = role_of(scenario, stage);
        const graph::Layout& layout = graph.sections[section].layout;
        const std::int64_t unit = role.stage.last() ? 1 : table.units(section).unit();
        for (const std::int64_t id : ids)
            for (const graph::StageEdge& e : graph.stage_edges)
                if (e.from == stage && !graph::passes_pointer(graph, e))
                    (e.within_section() ? count.pp_bytes : count.edge_bytes) +=
                        (e.gradient ? 2.0 : 1.0) *
                        static_cast<double>(table.output_rows(id, section) * unit * role.output_width) *
                        static_cast<double>(size_of(role.compute));
        const auto meta = backend::make_meta();
        const auto module =
            model::make_module(*meta, scenario.models[section], role, meta_mesh_of(scenario, stage));
        for (const parallel::ParameterGroup& group : module->parameters().groups()) {
            if (!group.trainable()) continue;
            for (const parallel::Axis axis : parallel::kReplicaAxes) {  // an all-reduce, once a step
                const int ranks = module->mesh().group(axis).size();
                (axis == parallel::Axis::tied ? count.pp_bytes : count.tp_bytes) +=
                    2.0 * static_cast<double>(size_of(group.gradient().dtype)) *
                    static_cast<double>(group.replicated(axis)) * (ranks - 1) / ranks * layout.dp *
                    layout.stage_ranks();
            }
            // Each of n ranks sends (n - 1) / n of the gradients in the reduce-scatter, and as much of the
            // weights in the all-gather.
            const auto bytes = static_cast<double>(group.gradient().bytes() + group.weights().bytes());
            const parallel::MeshShape& shape = module->mesh().shape();
            const int copies = shape.copies(group.data_axes());
            count.dp_bytes += bytes * (copies - 1) * (shape.ranks() / copies);
        }
    }
    return counts;
}

}  // namespace maestro::workload
