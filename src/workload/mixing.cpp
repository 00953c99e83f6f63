#include "workload/mixing.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "workload/cost_model.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"

namespace maestro::workload {

namespace {

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

std::array<double, 2> mixing_factors(const Scenario& scenario, int section, const SampleTable& table,
                                     Probes& probes) {
    constexpr std::int64_t kMostSamples = 64;
    const graph::Section& s = scenario.graph.sections[section];
    if (!scenario.cluster || s.layout.cp == 1) return {1, 1};
    const int stage = scenario.graph.stage_of(section, 0);
    model::Role role =
        role_of(scenario, section,
                {.index = 0, .count = 1, .first_layer = 0, .layers = scenario.models[section].layers});
    role.recompute = Recompute::none;
    role.recompute_layers = 0;
    const StageProbe probe(scenario, section, role, mesh_shape_of(scenario, stage),
                           best_links(scenario, stage), table.lengths(section), probes);
    const std::int64_t size = std::min<std::int64_t>(s.micro_batch, kMostSamples);
    const std::vector<std::vector<std::int64_t>> batches = batches_of(table, section, size);
    std::set<double> lengths;
    for (const std::vector<std::int64_t>& batch : batches)
        for (const std::int64_t id : batch)
            table.for_each_sequence(id, section, [&](double n) { lengths.insert(n); });
    if (lengths.empty()) return {1, 1};
    const LengthCost cost = probe.predicted(lengths);
    std::array<double, 2> predicted_s{}, measured_s{};
    for (const std::vector<std::int64_t>& batch : batches) {
        const double lacking = static_cast<double>(size) - static_cast<double>(batch.size());
        predicted_s[0] += lacking * cost.lacking_forward;
        predicted_s[1] += lacking * cost.lacking_backward;
        Probe together = probe.empty();
        for (const std::int64_t id : batch) {
            const SampleSeconds seconds = seconds_of(cost, table, section, id);
            predicted_s[0] += seconds.forward_s;
            predicted_s[1] += seconds.backward_s;
            together.add(table.shape(id));
        }
        const model::Footprint footprint = probes.footprint(together);
        measured_s[0] += footprint.forward_s;
        measured_s[1] += footprint.backward_s;
    }
    std::array<double, 2> factors{1, 1};
    for (std::size_t phase = 0; phase < 2; ++phase)
        if (predicted_s[phase] > 0) factors[phase] = measured_s[phase] / predicted_s[phase];
    return factors;
}

}  // namespace maestro::workload
