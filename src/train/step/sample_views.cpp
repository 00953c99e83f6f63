#include "train/step/sample_views.hpp"

namespace maestro::train {

SampleViews::SampleViews(std::span<const data::Sample> samples) {
    items_.reserve(samples.size());
    for (const data::Sample& sample : samples) {
        auto& items = items_.emplace_back();
        for (const data::StoredItem& stored : sample.items)
            items.push_back({stored.data.data(), stored.item});
        samples_.push_back({sample.id, sample.tokens, sample.weights, sample.flags, items});
    }
}

}  // namespace maestro::train
