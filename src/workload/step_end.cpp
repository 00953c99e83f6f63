#include "workload/step_end.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "collective/process_group.hpp"
#include "ops/adamw.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::workload {

namespace {

/// Of rank 0 of `ranks` that hold the same weights: no share is larger than its.
StepEnd end_of(const model::ModelSpec& spec, const model::Role& role, parallel::Peers peers, int ranks,
               const config::Link& link, const backend::DeviceRates& rates) {
    const auto meta = backend::make_meta(rates);
    const auto module = model::make_module(*meta, spec, role, std::move(peers));
    parallel::ParameterStore& store = module->parameters();
    const std::int64_t size = store.gradient().size();
    if (size == 0) return {};
    const auto group = collective::make_meta_group(0, ranks, link.latency_s, link.bandwidth);
    const std::vector<std::int64_t> blocks = parallel::blocks_of_shares(size, ranks);
    const Tensor whole = parallel::in_blocks(store.gradient());
    const Tensor own = whole.slice(0, blocks[0]);
    StepEnd end;
    backend::Arena scratch;
    meta->reset_counts();
    for (const parallel::Sharing sharing : parallel::kSharings) {
        collective::ProcessGroup& sharers = module->peers().group(sharing);
        sharers.all_reduce(*meta, Tensor(nullptr, DType::f32, {store.shared(sharing)}), ops::Reduction::sum,
                           scratch);
        end.reduce_s += sharers.traffic().seconds;
    }
    group->reduce_scatter(*meta, whole, own, blocks, ops::Reduction::sum, scratch);
    ops::add_squares(*meta, own, Tensor(nullptr, DType::f64, {1}), scratch);
    end.reduce_s += group->traffic().seconds + meta->counts().seconds;
    meta->reset_counts();
    group->reset_traffic();
    ops::adamw(*meta, own, own, own, own, {}, {});
    group->wait(group->start_all_gather_in_place(whole, blocks));
    store.refresh_compute();
    store.zero_gradients();
    end.update_s = group->traffic().seconds + meta->counts().seconds;
    return end;
}

}  // namespace

std::vector<StepEnd> step_ends(const config::Deck& deck, std::int32_t marker, const config::Cluster& cluster,
                               bool everywhere) {
    std::vector<StepEnd> ends;
    for (int s = 0; s < static_cast<int>(deck.graph.sections.size()); ++s) {
        const graph::Section& section = deck.graph.sections[s];
        const int holders = everywhere ? deck.graph.world : section.layout.dp * section.layout.cp;
        const int first = everywhere ? 0 : section.first_rank;
        const int last = everywhere ? holders - 1 : first + section.layout.ranks() - 1;
        ends.push_back(end_of(spec_of(deck, s), role_of(deck, s, marker),
                              everywhere ? parallel::no_peers() : paper_peers_of(deck, s, 0, &cluster),
                              holders, link_among(cluster, first, last).of_collectives(),
                              rates_of(cluster.device)));
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
