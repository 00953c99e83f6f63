#include "workload/step_end.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/adamw.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::workload {

namespace {

/// Seconds of what the groups of the mesh have sent since the last call.
double sent_s(const parallel::Mesh& mesh) {
    double seconds = 0;
    const auto take = [&](parallel::Axes axes) {
        seconds += mesh.group(axes).traffic().seconds;
        mesh.group(axes).reset_traffic();
    };
    for (const parallel::Axis axis : parallel::kReplicaAxes) take(axis);
    take(parallel::kDataAxes);
    return seconds;
}

/// Of rank 0 of the mesh: no rank's shard is larger.
StepEnd end_of(const model::ModelSpec& spec, const model::Role& role, parallel::Mesh mesh,
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
        ops::adamw(*meta, shard, shard, shard, shard, {}, {});
        group.gather_weights();
    }
    store.zero_gradients();
    end.update_s = seconds();
    return end;
}

}  // namespace

std::vector<StepEnd> step_ends(const config::Deck& deck, std::int32_t marker, const config::Cluster& cluster,
                               bool everywhere) {
    std::vector<StepEnd> ends;
    for (int s = 0; s < static_cast<int>(deck.graph.sections.size()); ++s) {
        const auto mesh = [&] {
            if (!everywhere) return meta_mesh_of(deck, s, 0, &cluster);
            const config::Link link = link_among(cluster, 0, deck.graph.world - 1).of_collectives();
            return parallel::make_meta_mesh(
                0, {.dp = deck.graph.world, .trainable = deck.graph.sections[s].train},
                {.tp = {}, .cp = {}, .data = {link.latency_s, link.bandwidth}});
        };
        ends.push_back(end_of(spec_of(deck, s), role_of(deck, s, marker), mesh(), rates_of(cluster.device)));
    }
    return ends;
}

double step_seconds(const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                    std::vector<double> at, double latency_s, bool everywhere) {
    std::vector<double> update(at.size(), 0.0);
    for (std::size_t s = 0; s < ends.size(); ++s) {
        const graph::Section& section = graph.sections[s];
        const std::size_t first = everywhere ? 0 : section.first_lane;
        const auto last = everywhere ? at.size() : first + section.layout.lanes();
        const auto begin = at.begin() + first;
        const auto end = at.begin() + last;
        std::fill(begin, end, *std::max_element(begin, end) + ends[s].reduce_s);
        for (std::size_t lane = first; lane < last; ++lane) update[lane] += ends[s].update_s;
    }
    // A sum over all ranks: up and down a tree.
    const double norm_s =
        2 * latency_s * std::ceil(std::log2(std::max(1.0, static_cast<double>(graph.world))));
    return *std::max_element(at.begin(), at.end()) + norm_s + *std::max_element(update.begin(), update.end());
}

}  // namespace maestro::workload
