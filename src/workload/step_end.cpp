#include "workload/step_end.hpp"

#include <algorithm>
#include <cmath>

#include "ops/adamw.hpp"
#include "workload/costs.hpp"
#include "workload/models.hpp"

namespace maestro::workload {

namespace {

/// Of `bytes` over `ranks` of a ring, one way round: reduce-scatter or allgather.
double ring_s(double bytes, int ranks, const config::Link& link) {
    return ranks == 1 ? 0 : (ranks - 1) * (link.latency_s + bytes / ranks / link.bandwidth);
}

StepEnd end_of(const model::ModelSpec& spec, model::Role role, int replicas, const config::Link& link,
               const backend::DeviceRates& rates) {
    role.shards = replicas;
    const auto meta = backend::make_meta(rates);
    const auto module = model::make_module(*meta, spec, role);
    model::ParameterStore& store = module->parameters();
    const std::int64_t size = store.gradient().size();
    if (size == 0) return {};
    const double ring = ring_s(sizeof(float) * static_cast<double>(size), replicas, link);
    const auto part = [&](std::int64_t elements) { return Tensor(nullptr, DType::f32, {elements}); };
    // A shard is a range of the flat array; it cuts through one parameter at either end.
    std::int64_t trainable = 0;
    for (const model::Parameter& p : store.parameters()) trainable += p.trainable ? 1 : 0;
    const std::int64_t pieces = std::min(trainable, (trainable + replicas - 1) / replicas + 1);
    StepEnd end;
    meta->reset_counts();
    ops::squared_norm(*meta, part(size / replicas));
    end.reduce_s = ring + meta->counts().seconds;
    meta->reset_counts();
    for (std::int64_t i = 0; i < pieces; ++i) {
        const Tensor shard = part((size / replicas + pieces - 1) / pieces);
        ops::adamw(*meta, shard, shard, shard, shard, {});
    }
    store.refresh_compute();
    store.zero_gradients();
    end.update_s = ring + meta->counts().seconds;
    return end;
}

}  // namespace

std::vector<StepEnd> step_ends(const config::Deck& deck, std::int32_t marker, const config::Cluster& cluster,
                               bool everywhere) {
    std::vector<StepEnd> ends;
    for (int s = 0; s < static_cast<int>(deck.graph.sections.size()); ++s) {
        const graph::Section& section = deck.graph.sections[s];
        const int replicas = everywhere ? deck.graph.world : section.layout.dp;
        const int first = everywhere ? 0 : section.first_rank;
        ends.push_back(end_of(spec_of(deck, s), role_of(deck, s, marker), replicas,
                              link_among(cluster, first, first + replicas - 1), rates_of(cluster.device)));
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
