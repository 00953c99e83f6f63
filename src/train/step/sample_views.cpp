#include "train/step/sample_views.hpp"

namespace maestro::train {

SampleViews::SampleViews(std::span<const data::Sample> samples) {
    pictures_.reserve(samples.size());
    for (const data::Sample& sample : samples) {
        auto& pictures = pictures_.emplace_back();
        for (const data::StoredPicture& picture : sample.pictures)
            pictures.push_back({picture.pixels.data(), picture.height, picture.width});
        samples_.push_back({sample.id, sample.tokens, sample.weights, sample.flags, pictures});
    }
}

}  // namespace maestro::train
