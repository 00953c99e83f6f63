#include "workload/step_end.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "graph/grid.hpp"
#include "ops/adamw.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/probes.hpp"

namespace maestro::workload {

namespace {

/// Returns the seconds of what the groups of the mesh have sent since the last call.
double sent_s(const parallel::Mesh& mesh) {
    double seconds = 0;
    const auto add = [&](parallel::Axes axes) {
        seconds += mesh.group(axes).traffic().seconds;
        mesh.group(axes).reset_traffic();
    };
    for (const parallel::Axis axis : parallel::kReplicaAxes) add(axis);
    add(parallel::kDataAxes);
    return seconds;
}

/// Returns ranks along kDataAxes of which one ends last: the first of all, whose shard is the longest, and
/// the first on a node of each size, because what a rank exchanges for its node depends on how many share
/// that.
std::vector<int> representatives(const Probe& probe) {
    std::vector<int> ranks{0};
    const collective::Nodes nodes(probe.links.data_nodes);
    std::set<std::size_t> sizes;
    for (int node = 0; node < nodes.count(); ++node)
        if (sizes.insert(nodes.on(node).size()).second && nodes.on(node).front() != 0)
            ranks.push_back(nodes.on(node).front());
    return ranks;
}

}  // namespace

StepEnd measure_step_end(const model::ModelSpec& spec, const model::Role& role, parallel::Mesh mesh,
                         const backend::DeviceRates& rates) {
    const auto meta = backend::make_meta(rates);
    const auto module = model::make_module(*meta, spec, role, std::move(mesh), model::InitialWeights::zeros);
    parallel::ParameterStore& store = module->parameters();
    StepEnd end;
    if (store.trainable() == 0) return end;
    const auto seconds = [&] {
        const double total = meta->counts().seconds + sent_s(module->mesh());
        meta->reset_counts();
        return total;
    };
    // The first call discards what making the module has counted.
    backend::Arena scratch;
    seconds();
    for (parallel::ParameterGroup& group : store.groups()) {
        if (!group.trainable()) continue;
        const Tensor shard = group.gradient().slice(group.shard().begin, group.shard().end);
        group.reduce_gradients(scratch);
        ops::add_squares(*meta, shard, Tensor(nullptr, DType::f64, {1}), scratch);
    }
    end.reduce_s = seconds();
    for (parallel::ParameterGroup& group : store.groups()) {
        if (!group.trainable()) continue;
        const Tensor shard = group.gradient().slice(group.shard().begin, group.shard().end);
        // The meta backend reads no values, so that one tensor can stand for weights and moments too.
        ops::adamw(*meta, shard, shard, shard, shard, {}, {});
        group.gather_weights();
    }
    store.zero_gradients();
    end.update_s = seconds();
    return end;
}

std::vector<StepEnd> step_ends(const Scenario& scenario, Probes& probes) {
    MAESTRO_CHECK(scenario.cluster, "the end of a step takes seconds of a cluster");
    std::vector<StepEnd> ends;
    for (int s = 0; s < static_cast<int>(scenario.graph.stages.size()); ++s) {
        Probe probe{.spec = scenario.models[scenario.graph.stages[s].section],
                    .role = role_of(scenario, s),
                    .shape = mesh_shape_of(scenario, s),
                    .links = mesh_links_of(scenario, s)};
        probe.options.rates = rates_of(scenario.cluster->device);
        StepEnd& end = ends.emplace_back();
        for (const int data_rank : representatives(probe)) {
            probe.rank = data_rank * probe.shape.degrees.tp;
            const StepEnd& of_rank = probes.step_end(probe);
            end.reduce_s = std::max(end.reduce_s, of_rank.reduce_s);
            end.update_s = std::max(end.update_s, of_rank.update_s);
        }
    }
    return ends;
}

double step_seconds(const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                    std::vector<double> at, double latency_s) {
    std::vector<double> update(at.size(), 0.0);
    for (int s = 0; s < static_cast<int>(ends.size()); ++s) {
        // The reduction is collective over the stage: it starts when the last of its lanes is there.
        double start = 0;
        const int replicas = graph.section_of(s).layout.dp;
        for (int r = 0; r < replicas; ++r) start = std::max(start, at[graph::lane_of(graph, s, r)]);
        for (int r = 0; r < replicas; ++r) {
            at[graph::lane_of(graph, s, r)] = start + ends[s].reduce_s;
            update[graph::lane_of(graph, s, r)] += ends[s].update_s;
        }
    }
    // The norm is an all-reduce over all ranks: up and down a tree.
    const double norm_s =
        2 * latency_s * std::ceil(std::log2(std::max(1.0, static_cast<double>(graph.world))));
    return *std::max_element(at.begin(), at.end()) + norm_s + *std::max_element(update.begin(), update.end());
}

}  // namespace maestro::workload
