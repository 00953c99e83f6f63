// Converts samples from the file to what modules take.
#pragma once

#include <span>
#include <vector>

#include "data/sample_file.hpp"
#include "model/module.hpp"

namespace maestro::train {

/// Points into the samples that it is made of. The caller keeps them alive and does not move them.
class SampleViews {
public:
    explicit SampleViews(std::span<const data::Sample> samples);
    SampleViews(const SampleViews&) = delete;
    SampleViews& operator=(const SampleViews&) = delete;
    std::span<const model::SampleView> all() const { return samples_; }

private:
    std::vector<std::vector<model::ItemView>> items_;  ///< by sample; what samples_ point to
    std::vector<model::SampleView> samples_;
};

}  // namespace maestro::train
