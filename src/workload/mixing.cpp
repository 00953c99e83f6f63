#include "workload/mixing.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "workload/cost_model.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"

namespace maestro::workload {

namespace {

constexpr std::int64_t kMostSamples = 64;  ///< of a micro-batch that tells the mean

/// Micro-batches of up to `size` samples with work for the section, taken from all parts of the table.
std::vector<std::vector<std::int64_t>> batches_of(const SampleTable& table, int section, std::int64_t size) {
    constexpr std::int64_t kSamples = 128, kFewest = 8, kMost = 16, kLookedAt = 4096;
    const std::int64_t count = std::clamp(kSamples / size, kFewest, kMost);
    std::vector<std::vector<std::int64_t>> batches;
    for (std::int64_t k = 0; k < count; ++k) {
        std::vector<std::int64_t> batch;
        const std::int64_t first = k * table.size() / count, end = std::min(table.size(), first + kLookedAt);
        for (std::int64_t id = first; id < end && static_cast<std::int64_t>(batch.size()) < size; ++id)
            if (table.activates(id, section)) batch.push_back(id);
        if (!batch.empty()) batches.push_back(std::move(batch));
    }
    return batches;
}

}  // namespace

parallel::MeshLinks best_links(const Scenario& scenario, int stage) {
    const config::Cluster& cluster = *scenario.cluster;
    const graph::Layout& layout = scenario.graph.section_of(stage).layout;
    const auto cost = [&](std::int64_t ranks) {
        const config::Link link =
            (ranks <= cluster.ranks_per_node ? cluster.node : cluster.network).of_collectives();
        return parallel::LinkCost{link.latency_s, link.bandwidth};
    };
    parallel::MeshLinks links = mesh_links_of(scenario, stage);
    links.tp = cost(layout.tp);
    links.cp = cost(layout.stage_ranks());
    if (!cluster.collectives.empty()) {
        const auto nodes = [&](int ranks) {
            const auto each = static_cast<int>(cluster.ranks_per_node);
            return (ranks + each - 1) / each;
        };
        links.tp_nodes = nodes(layout.tp);
        links.cp_nodes = std::min(nodes(layout.stage_ranks()), layout.cp);
        links.fewest_nodes = true;
    }
    if (const int ranks = layout.expert_ranks(); ranks > 1 && ranks <= cluster.ranks_per_node)
        links.expert_nodes.assign(static_cast<std::size_t>(ranks), 0);
    return links;
}

namespace {

/// Seconds of the forward and the backward of a micro-batch: the sum of its samples' costs, and what the
/// model's code takes for it.
struct BatchSeconds {
    std::array<double, 2> predicted{}, real{};
};

std::vector<BatchSeconds> seconds_of(const Scenario& scenario, int section, const SampleTable& table,
                                     Probes& probes, std::span<const std::vector<std::int64_t>> batches) {
    const int stage = scenario.graph.stage_of(section, 0);
    model::Role role =
        role_of(scenario, section,
                {.index = 0, .count = 1, .first_layer = 0, .layers = scenario.models[section].layers});
    role.recompute = Recompute::none;
    role.recompute_layers = 0;
    const StageProbe probe(scenario, section, role, mesh_shape_of(scenario, stage),
                           best_links(scenario, stage), table.lengths(section), probes);
    std::set<double> lengths;
    for (const std::vector<std::int64_t>& batch : batches)
        for (const std::int64_t id : batch)
            table.for_each_sequence(id, section, [&](double n) { lengths.insert(n); });
    std::vector<BatchSeconds> seconds;
    if (lengths.empty()) return seconds;
    const LengthCost cost = probe.predicted(lengths);
    const auto full = static_cast<double>(
        std::min<std::int64_t>(scenario.graph.sections[section].micro_batch, kMostSamples));
    for (const std::vector<std::int64_t>& batch : batches) {
        BatchSeconds& of_batch = seconds.emplace_back();
        const double lacking = std::max(0.0, full - static_cast<double>(batch.size()));
        of_batch.predicted = {lacking * cost.lacking_forward, lacking * cost.lacking_backward};
        Probe together = probe.empty();
        for (const std::int64_t id : batch) {
            const SampleSeconds of_sample = seconds_of(cost, table, section, id);
            of_batch.predicted[0] += of_sample.forward_s;
            of_batch.predicted[1] += of_sample.backward_s;
            together.add(table.shape(id));
        }
        const model::Footprint footprint = probes.footprint(together);
        of_batch.real = {footprint.forward_s, footprint.backward_s};
    }
    return seconds;
}

}  // namespace

std::array<double, 2> mixing_factors(const Scenario& scenario, int section, const SampleTable& table,
                                     Probes& probes) {
    const graph::Section& s = scenario.graph.sections[section];
    if (!scenario.cluster || s.layout.cp == 1) return {1, 1};
    const std::vector<std::vector<std::int64_t>> batches =
        batches_of(table, section, std::min<std::int64_t>(s.micro_batch, kMostSamples));
    BatchSeconds sum;
    for (const BatchSeconds& of_batch : seconds_of(scenario, section, table, probes, batches))
        for (std::size_t phase = 0; phase < 2; ++phase) {
            sum.predicted[phase] += of_batch.predicted[phase];
            sum.real[phase] += of_batch.real[phase];
        }
    std::array<double, 2> factors{1, 1};
    for (std::size_t phase = 0; phase < 2; ++phase)
        if (sum.predicted[phase] > 0) factors[phase] = sum.real[phase] / sum.predicted[phase];
    return factors;
}

schedule::Problem with_mixed_batches(schedule::Problem problem, const schedule::StepPlan& plan,
                                     const Scenario& scenario, const SampleTable& table, Probes& probes) {
    std::unordered_map<std::int64_t, std::size_t> place;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) place.emplace(problem.samples[i].id, i);
    const graph::SectionGraph& graph = scenario.graph;
    for (int section = 0; section < static_cast<int>(graph.sections.size()); ++section) {
        if (graph.sections[section].layout.cp == 1 || !table.units(section).encodes()) continue;
        std::vector<std::vector<std::int64_t>> batches;
        for (const auto& group : plan.batches[section])
            for (const schedule::MicroBatch& batch : group)
                for (int part = 0; part < batch.parts(); ++part)
                    if (const auto samples = batch.of_part(part); !samples.empty())
                        batches.emplace_back(samples.begin(), samples.end());
        const std::array<double, 2> mean = mixing_factors(scenario, section, table, probes);
        const std::vector<BatchSeconds> seconds = seconds_of(scenario, section, table, probes, batches);
        for (std::size_t b = 0; b < seconds.size(); ++b)
            for (const std::int64_t id : batches[b])
                for (int stage = graph.stage_of(section, 0); stage <= graph.last_stage(section); ++stage) {
                    schedule::TaskCost& cost = problem.samples[place.at(id)].stages[stage];
                    const auto factor = [&](std::size_t phase) {
                        const double predicted_s = mean[phase] * seconds[b].predicted[phase];
                        return predicted_s > 0 ? seconds[b].real[phase] / predicted_s : 1;
                    };
                    cost.forward_s *= factor(0);
                    cost.backward_s *= factor(1);
                }
    }
    return problem;
}

}  // namespace maestro::workload
