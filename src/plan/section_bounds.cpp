#include "plan/section_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "collective/process_group.hpp"
#include "ops/dispatch.hpp"
#include "workload/memory.hpp"

namespace maestro::plan {

double SectionBounds::Step::shortest_two(std::size_t n) {
    if (!sorted) std::sort(busiest.begin(), busiest.end(), std::greater<>());
    sorted = true;
    return busiest[n - 1] + busiest[n];
}

SectionBounds::SectionBounds(const Subject& subject, int section, const Choice& choice,
                             const parallel::MeshShape& mesh, const std::vector<StageTimes>& stages)
    : subject_(subject), section_(section), mesh_(mesh) {
    const graph::Layout& l = choice.layout;
    const auto pp = static_cast<std::size_t>(l.pp);
    // Where replicas share experts, the part of the lane that has a sample does not work alone.
    alone_ = l.stage_ranks() % l.expert_ranks() == 0;
    std::vector<std::vector<double>> ranks(pp, std::vector<double>(stages.front().seconds.size(), 0.0));
    std::vector<double> chains(stages.front().seconds.size(), 0.0);
    for (std::size_t k = 0; k < stages.size(); ++k)
        for (std::size_t i = 0; i < chains.size(); ++i) {
            ranks[k % pp][i] += stages[k].seconds[i];
            chains[i] += stages[k].seconds[i];
        }
    std::size_t busiest = 0;
    double most_s = -1;
    for (std::size_t r = 0; r < pp; ++r)
        if (const double sum = std::accumulate(ranks[r].begin(), ranks[r].end(), 0.0); sum > most_s) {
            most_s = sum;
            busiest = r;
        }
    std::size_t first = 0;
    for (const std::vector<std::int64_t>& ids : subject.steps) {
        const auto begin = static_cast<std::ptrdiff_t>(first),
                   end = begin + static_cast<std::ptrdiff_t>(ids.size());
        first += ids.size();
        Step& step = steps_.emplace_back();
        step.busiest.assign(ranks[busiest].begin() + begin, ranks[busiest].begin() + end);
        step.busiest_s = std::accumulate(step.busiest.begin(), step.busiest.end(), 0.0);
        step.all_s = std::accumulate(chains.begin() + begin, chains.begin() + end, 0.0);
        step.longest_s = *std::max_element(chains.begin() + begin, chains.begin() + end);
        step.active = static_cast<int>(std::count_if(chains.begin() + begin, chains.begin() + end,
                                                     [](double seconds) { return seconds > 0; }));
    }
    for (std::size_t r = 0; r < pp; ++r) {
        StageTimes rank;
        for (std::size_t k = r; k < stages.size(); k += pp) {
            rank.fixed_bytes += stages[k].fixed_bytes;
            rank.shared_elements += stages[k].shared_elements;
            rank.groups += stages[k].groups;
            rank.saved_bytes += stages[k].saved_bytes;
            rank.window_bytes += stages[k].window_bytes;
            rank.least_windows = std::max(rank.least_windows, stages[k].least_windows);
        }
        memory_.push_back(std::move(rank));
    }
    scratch_bytes_ = stages.front().scratch_bytes;
}

Rated SectionBounds::with(const Choice& choice) {
    const double dp = choice.layout.dp;
    Rated rated{.choice = choice};
    for (Step& step : steps_) {
        double least_s = step.busiest_s / dp;
        if (alone_) {
            least_s = std::max(least_s, step.longest_s);
            // Of dp + 1 samples, two are on one replica.
            const auto n = static_cast<std::size_t>(dp);
            if (step.busiest.size() > n && 2 * step.longest_s > least_s)
                least_s = std::max(least_s, step.shortest_two(n));
        }
        rated.busiest_s += least_s;
        rated.mean_s += step.all_s / (dp * rated.choice.layout.pp);
        rated.rank_s += step.all_s * rated.choice.layout.stage_ranks();
        rated.likely_s += least_s + outside(rated.choice, step);
        rated.chain_s += step.all_s / (dp * micro_batches(rated.choice, step));
        rated.micro_batches += micro_batches(rated.choice, step) / static_cast<double>(steps_.size());
    }
    const workload::Scenario& scenario = subject_.scenario;
    const graph::Layout& layout = rated.choice.layout;
    const double shared =
        master_bytes(subject_) + 2.0 * static_cast<double>(size_of(ops::accumulate_type(scenario.compute)));
    // The most ranks that may hold the same weights.
    double copies = dp * layout.cp;
    if (scenario.models[static_cast<std::size_t>(section_)].experts.count > 0)
        copies = std::max(copies, dp * layout.stage_ranks() / layout.expert_ranks());
    // For each of the chunks of a rank.
    parallel::MeshShape mesh = mesh_;
    mesh.dp = layout.dp;
    const double connections = layout.chunks * subject_.device.libraries.link * workload::links_of(mesh);
    rated.least_bytes = kNone;
    rated.windows = kNone;
    const double memory = subject_.device.window_bytes();
    for (const StageTimes& rank : memory_) {
        const double bytes = rank.fixed_bytes + rank.saved_bytes + connections +
                             shared * rank.shared_elements / copies + subject_.device.libraries.workspace +
                             subject_.device.libraries.reserve;
        rated.bytes = std::max(rated.bytes, bytes);
        rated.least_bytes = std::min(rated.least_bytes, bytes);
        if (rank.window_bytes > 0)
            rated.windows = std::min(
                rated.windows,
                rank.least_windows + std::max(0.0, (memory - bytes - scratch_bytes_) / rank.window_bytes));
    }
    rated.likely_bytes = rated.bytes + scratch_bytes_;
    return rated;
}

double SectionBounds::outside(const Choice& choice, const Step& step) const {
    const graph::Layout& l = choice.layout;
    const config::Cluster& cluster = *subject_.scenario.cluster;
    const graph::Section& section = subject_.scenario.graph.sections[section_];
    // A micro-batch on one pipeline rank, of which the backward takes two thirds.
    const double task_s = step.all_s / (l.dp * micro_batches(choice, step) * l.pp);
    double outside_s = (l.pp - 1) * task_s / l.chunks;
    if (!section.train) return outside_s;
    const double element = static_cast<double>(size_of(ops::accumulate_type(subject_.scenario.compute)));
    // Ranks with the same weights exchange them within their nodes first, and each then a part with the
    // other nodes.
    const auto copies = static_cast<double>(l.dp) * l.cp,
               here = std::min(copies, std::max(1.0, static_cast<double>(cluster.ranks_per_node) / l.tp)),
               nodes = copies / here;
    const double byte_s = (here - 1) / here / cluster.node.of_collectives().bandwidth +
                          (nodes - 1) / nodes / here / cluster.network.of_collectives().bandwidth;
    double most_s = 0;
    for (const StageTimes& rank : memory_) {
        const double gradients = element * rank.shared_elements;
        // Among nodes with several ranks each, the sum of a group is many operations.
        const double groups = std::max(rank.groups, 1.0),
                     sums = groups *
                            collective::sums_by_nodes(nodes, here, rank.shared_elements / groups / copies,
                                                      ops::accumulate_type(subject_.scenario.compute)),
                     sum_s = byte_s * gradients + sums * cluster.device.operation_s;
        most_s = std::max(most_s, std::max(0.0, sum_s - 2 * task_s / 3) +
                                      std::max(0.0, byte_s * (rank.fixed_bytes - gradients) - task_s / 3) +
                                      7 * gradients / copies / cluster.device.memory_bandwidth);
    }
    return outside_s + most_s;
}

double SectionBounds::micro_batches(const Choice& choice, const Step& step) {
    const double samples = std::ceil(static_cast<double>(step.active) / choice.layout.dp);
    return std::max(1.0, std::ceil(samples / choice.micro_batch));
}

}  // namespace maestro::plan
