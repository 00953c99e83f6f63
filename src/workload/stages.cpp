#include "workload/stages.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/check.hpp"
#include "workload/models.hpp"
#include "workload/probes.hpp"

namespace maestro::workload {

namespace {

/// Returns the floating-point operations of a micro-batch of one sample in a stage with this layer alone: the
/// first of three, between two others, or the last.
double flops_of(const Scenario& scenario, int section, int index, int layer, std::int64_t tokens) {
    const model::ModelSpec& spec = scenario.models[section];
    model::SampleShape sample{.tokens = tokens, .items = {}, .weight = 1};
    if (const model::Units units(spec); units.encodes())
        sample = {.tokens = 1, .items = {units.probe(kProbedSide)}, .weight = 1};
    model::Role role =
        role_of(scenario, section, {.index = index, .count = 3, .first_layer = layer, .layers = 1});
    // What is added after the first layers costs next to nothing, and a stage of one layer has no room for
    // it.
    for (model::InputSpec& input : role.inputs) input.from.deepstack.clear();
    const model::Footprint footprint = model::measure(spec, role, std::span(&sample, 1));
    return footprint.forward_flops + footprint.backward_flops;
}

/// Returns the operations of each layer of a section, with what stands before the first and after the last.
std::vector<double> costs_of_layers(const Scenario& scenario, int section, std::int64_t tokens) {
    const model::ModelSpec& model = scenario.models[section];
    const int layers = model.layers;
    // Layers that are built alike cost the same, but for their backward passes where some are frozen.
    const bool alike = scenario.tuning[section].frozen.empty();
    std::map<int, double> measured;
    std::vector<double> costs;
    for (int layer = 0; layer < layers; ++layer) {
        const int like = alike ? model.first_like(layer) : layer;
        const auto [cost, is_new] = measured.try_emplace(like, 0.0);
        if (is_new) cost->second = flops_of(scenario, section, 1, like, tokens);
        costs.push_back(cost->second);
    }
    const double first = costs.front(), last = costs.back();
    costs.front() += flops_of(scenario, section, 0, 0, tokens) - first;
    costs.back() += flops_of(scenario, section, 2, layers - 1, tokens) - last;
    return costs;
}

/// Returns after how many layers, all of the first stage, an encoder's rows are added.
int deepstack_of(const Scenario& scenario, int section) {
    std::size_t most = 0;
    for (const graph::Edge& e : scenario.graph.edges)
        if (e.to == section && e.tensor == EdgeTensor::embeddings)
            most = std::max(most, scenario.models[e.from].deepstack.size());
    return static_cast<int>(most);
}

}  // namespace

std::vector<int> linear_partition(std::span<const double> costs, int parts, int first) {
    const std::size_t n = costs.size(), p = static_cast<std::size_t>(parts);
    MAESTRO_CHECK(parts >= 1 && first >= 1 && p + static_cast<std::size_t>(first) <= n + 1,
                  "{} parts of {} costs, at least {} in the first", parts, n, first);
    constexpr double kNone = std::numeric_limits<double>::infinity();
    std::vector<double> sum(n + 1, 0.0);
    for (std::size_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + costs[i];
    // best[k][i]: the smallest value of a cut of the first i costs into k parts, by join(value, sum of the
    // last part); from[k][i]: where its last part begins.
    std::vector<std::vector<std::size_t>> from(p + 1, std::vector<std::size_t>(n + 1, 0));
    const auto solve = [&](auto&& join) {
        std::vector<std::vector<double>> best(p + 1, std::vector<double>(n + 1, kNone));
        best[0][0] = 0;
        for (std::size_t k = 1; k <= p; ++k)
            for (std::size_t i = k + static_cast<std::size_t>(first) - 1; i <= n; ++i)
                for (std::size_t j = k - 1; j < i; ++j)
                    if (const double value = join(best[k - 1][j], sum[i] - sum[j]); value < best[k][i]) {
                        best[k][i] = value;
                        from[k][i] = j;
                    }
        return best[p][n];
    };
    const double largest = solve([](double value, double part) { return std::max(value, part); });
    // Sums of equal costs may differ by rounding.
    const double limit = largest * (1 + 1e-12);
    solve([&](double value, double part) { return part <= limit ? value + part * part : kNone; });
    std::vector<int> counts(p);
    for (std::size_t k = p, end = n; k > 0; --k) {
        counts[k - 1] = static_cast<int>(end - from[k][end]);
        end = from[k][end];
    }
    return counts;
}

std::vector<Range> layers_of_stages(const Scenario& scenario, int section, std::int64_t tokens) {
    const graph::Layout& layout = scenario.graph.sections[section].layout;
    std::vector<Range> layers(static_cast<std::size_t>(layout.stage_count()));
    const int all = scenario.models[section].layers;
    if (scenario.models[section].name.empty()) return layers;
    std::vector<int> counts{all};
    if (!layout.layers.empty())
        counts = layout.layers;
    else if (layout.stage_count() > 1)
        counts = linear_partition(costs_of_layers(scenario, section, tokens), layout.stage_count(),
                                  std::max(deepstack_of(scenario, section), 1));
    std::int64_t first = 0;
    for (std::size_t k = 0; k < layers.size(); ++k) {
        layers[k] = {first, first + counts[k]};
        first = layers[k].end;
    }
    MAESTRO_CHECK(first == all, "stages with {} layers of a model with {}", first, all);
    return layers;
}

void balance_stages(Scenario& scenario, const SampleTable& table) {
    for (int s = 0; s < static_cast<int>(scenario.graph.sections.size()); ++s) {
        const graph::Section& section = scenario.graph.sections[s];
        // Lengths decide nothing where the deck lists the layers, nor in a vision section (flops_of): their
        // samples need not be passed over.
        if (section.layout.stage_count() == 1 || !section.layout.layers.empty() || table.units(s).encodes())
            continue;
        // A sample of n tokens costs n (a + b n) in a layer and n c in the head. Their ratio over all samples
        // is that of one whose length is the mean over the tokens.
        const SampleTable::Lengths& lengths = table.lengths(s);
        const auto mean =
            static_cast<std::int64_t>(lengths.sum > 0 ? std::round(lengths.squares / lengths.sum) : 1);
        const std::vector<Range> layers = layers_of_stages(scenario, s, std::max<std::int64_t>(mean, 1));
        std::copy(layers.begin(), layers.end(), scenario.layers.begin() + section.first_stage);
    }
}

}  // namespace maestro::workload
