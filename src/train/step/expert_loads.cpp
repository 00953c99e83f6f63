#include "train/step/expert_loads.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"

namespace maestro::train {

io::ExpertRow expert_row(std::int64_t step, int section, int layer, std::span<const std::int64_t> counts) {
    const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    MAESTRO_CHECK(total > 0, "step {}, section {}, layer {}: no expert was chosen", step, section, layer);
    const auto experts = static_cast<double>(counts.size());
    double entropy = 0;
    for (const std::int64_t count : counts)
        if (const double share = static_cast<double>(count) / total; count > 0)
            entropy -= share * std::log(share);
    const auto [smallest, largest] = std::minmax_element(counts.begin(), counts.end());
    return {.step = step,
            .section = section,
            .layer = layer,
            .largest = static_cast<double>(*largest) * experts / total,
            .smallest = static_cast<double>(*smallest) * experts / total,
            .entropy = counts.size() > 1 ? entropy / std::log(experts) : 1};
}

ExpertLoads::ExpertLoads(std::span<const model::ModelSpec> models) {
    std::size_t first = 0;
    for (std::size_t s = 0; s < models.size(); ++s)
        for (int layer = 0; layer < models[s].layers; ++layer) {
            if (!models[s].experts.in_layer(layer)) continue;
            const auto experts = static_cast<std::size_t>(models[s].experts.count);
            layers_.push_back(
                {.section = static_cast<int>(s), .layer = layer, .first = first, .experts = experts});
            first += experts;
        }
    counts_.assign(first, 0);
}

const ExpertLoads::Layer& ExpertLoads::place_of(int section, const model::ExpertLoad& load) const {
    const auto place = std::find_if(layers_.begin(), layers_.end(), [&](const Layer& l) {
        return l.section == section && l.layer == load.layer;
    });
    MAESTRO_CHECK(place != layers_.end() && place->experts == load.choices.size(),
                  "section {}, layer {}: loads of {} experts", section, load.layer, load.choices.size());
    return *place;
}

void ExpertLoads::add(int section, std::span<const model::ExpertLoad> loads) {
    for (const model::ExpertLoad& load : loads) {
        const Layer& place = place_of(section, load);
        for (std::size_t e = 0; e < place.experts; ++e) counts_[place.first + e] += load.choices[e];
    }
}

void ExpertLoads::look_up(int section, std::span<model::ExpertLoad> loads) const {
    for (model::ExpertLoad& load : loads) {
        const Layer& place = place_of(section, load);
        std::copy_n(counts_.begin() + static_cast<std::ptrdiff_t>(place.first), place.experts,
                    load.choices.begin());
    }
}

void ExpertLoads::sum_over(const comm::Communicator& world) {
    if (!counts_.empty()) world.allreduce_sum(std::span(counts_));
}

std::vector<io::ExpertRow> ExpertLoads::rows(std::int64_t step) const {
    std::vector<io::ExpertRow> rows;
    for (const Layer& layer : layers_) {
        const auto counts = std::span(counts_).subspan(layer.first, layer.experts);
        if (std::any_of(counts.begin(), counts.end(), [](std::int64_t count) { return count > 0; }))
            rows.push_back(expert_row(step, layer.section, layer.layer, counts));
    }
    return rows;
}

}  // namespace maestro::train
