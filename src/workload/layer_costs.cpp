#include "workload/layer_costs.hpp"

#include <algorithm>

#include "workload/layout.hpp"
#include "workload/mixing.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"
#include "workload/task_factors.hpp"

namespace maestro::workload {

SampleWeights::SampleWeights(const SampleTable& table, int section, std::span<const std::int64_t> samples,
                             std::vector<double> grid)
    : samples_(samples.size()) {
    const LengthCost cost{.lengths = std::move(grid)};
    for (std::size_t i = 0; i < samples.size(); ++i)
        table.for_each_sequence(samples[i], section, [&](double n) {
            asked_.insert(n);
            const std::size_t k = cost.after(n);
            if (k == 0) {
                weights_.push_back({i, k, 0, n});
                return;
            }
            const double share = (n - cost.lengths[k - 1]) / (cost.lengths[k] - cost.lengths[k - 1]);
            weights_.push_back({i, k, n * (1 - share), n * share});
        });
    for (const model::Units& encoder : table.encoders(section)) {
        std::vector<double>& rows = item_rows_.emplace_back();
        for (const std::int64_t id : samples)
            rows.push_back(static_cast<double>(encoder.outputs(table.items(id))));
    }
    // A section without work for any of these samples costs nothing, whatever is measured.
    if (asked_.empty()) asked_.insert(1);
}

void SampleWeights::add(const std::vector<double>& each, const std::vector<double>& items,
                        std::vector<double>& costs) const {
    for (const Weight& w : weights_) {
        costs[w.sample] += w.after * each[w.at];
        if (w.at > 0) costs[w.sample] += w.before * each[w.at - 1];
    }
    for (std::size_t e = 0; e < items.size(); ++e)
        for (std::size_t i = 0; i < samples_; ++i) costs[i] += item_rows_[e][i] * items[e];
}

LayerCosts::LayerCosts(const Scenario& scenario, int section, const parallel::MeshLinks& links,
                       const SampleTable& table, Probes& probes, const SampleWeights& weights)
    : scenario_(scenario), section_(section), weights_(weights) {
    const StageProbe probe(scenario, section, scenario.graph.stage_of(section, 0), links,
                           table.lengths(section), probes);
    mesh_ = probe.mesh();
    item_rows_ = probe.item_rows();
    mixing_ = mixing_factors(scenario, section, table, probes);
    grid_ = probe.grid();
    needed_ = probe.needed(grid_, weights.asked());
    for (std::size_t i = 0; i < grid_.size(); ++i) {
        Passes& passes = lengths_.emplace_back();
        if (!needed_[i]) continue;
        const StageProbe::Batch batch = probe.at(i);
        passes = passes_of(batch.footprint, batch.samples, batch.length);
    }
    for (std::size_t e = 0; e < probe.encoders(); ++e) {
        const StageProbe::Batch batch = probe.with_item(e);
        items_.push_back(passes_of(batch.footprint, batch.samples, batch.length));
    }
}

/// Returns which mark of a footprint is that of a layer of the model: an encoder adds layers of the parameter
/// store after some of them (DeepStack).
std::size_t LayerCosts::mark_of(int layer) const {
    const std::vector<int>& branches = scenario_.models[section_].deepstack;
    const auto before =
        std::count_if(branches.begin(), branches.end(), [&](int branch) { return branch < layer; });
    return static_cast<std::size_t>(layer) + static_cast<std::size_t>(before) + 1;
}

LayerCosts::Passes LayerCosts::passes_of(const model::Footprint& footprint, double samples,
                                         double length) const {
    const int layers = scenario_.models[section_].layers;
    const auto until = [](const model::Footprint::Mark& mark) {
        return Until{mark.until_wait_s + std::max(mark.device_s, mark.host_s), mark.sent_s};
    };
    Passes passes{.forward = {{}}, .backward = {}, .samples = samples, .length = length};
    for (int layer = 1; layer < layers; ++layer)
        passes.forward.push_back(until(footprint.forward_marks[mark_of(layer)]));
    passes.forward.push_back(until(footprint.forward_end));
    // A pass that does not come to a layer has ended before it.
    passes.backward.push_back(until(footprint.backward_end));
    for (int layer = 1; layer < layers; ++layer) {
        const model::Footprint::Mark& mark = footprint.backward_marks[mark_of(layer)];
        passes.backward.push_back(until(mark.passed ? mark : footprint.backward_end));
    }
    passes.backward.push_back({});
    return passes;
}

double LayerCosts::seconds_of(const Passes& passes, Range layers, int index, int count) const {
    std::array<double, 2> factors{1, 1};
    if (!scenario_.cluster->corrections.empty()) {
        const std::vector<std::int64_t> sequences(static_cast<std::size_t>(passes.samples),
                                                  static_cast<std::int64_t>(passes.length));
        factors = task_factors(*scenario_.cluster, scenario_.models[section_],
                               role_of(scenario_, section_,
                                       {.index = index,
                                        .count = count,
                                        .first_layer = static_cast<int>(layers.begin),
                                        .layers = static_cast<int>(layers.size())}),
                               task_shape(sequences, mesh_))
                      .phases;
    }
    const auto begin = static_cast<std::size_t>(layers.begin), end = static_cast<std::size_t>(layers.end);
    const auto between = [](const Until& from, const Until& to, double factor) {
        return factor * (to.computed_s - from.computed_s) + to.sent_s - from.sent_s;
    };
    const double forward_s = between(passes.forward[begin], passes.forward[end], factors[0]),
                 backward_s = between(passes.backward[end], passes.backward[begin], factors[1]);
    return (mixing_[0] * forward_s + mixing_[1] * backward_s) / passes.samples;
}

void LayerCosts::add_seconds(Range layers, int index, int count, std::vector<double>& seconds) const {
    std::vector<double> each(lengths_.size(), 0.0), items;
    for (std::size_t i = 0; i < lengths_.size(); ++i)
        if (needed_[i]) each[i] = seconds_of(lengths_[i], layers, index, count) / grid_[i];
    const LengthCost cost{.lengths = grid_};
    for (const Passes& passes : items_)
        items.push_back((seconds_of(passes, layers, index, count) - cost.at(each, 2 * item_rows_)) /
                        item_rows_);
    weights_.add(each, items, seconds);
}

double LayerCosts::saved(const model::Footprint& longest, Range layers) const {
    const auto until = [&](std::int64_t layer) {
        if (layer == 0) return 0.0;
        if (layer == scenario_.models[section_].layers) return static_cast<double>(longest.saved);
        return static_cast<double>(longest.forward_marks[mark_of(static_cast<int>(layer))].saved);
    };
    return until(layers.end) - until(layers.begin);
}

}  // namespace maestro::workload
