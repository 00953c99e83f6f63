#include "train/setup/picture_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "comm/agree.hpp"

namespace maestro::train {

namespace {

struct LabelledPicture {
    std::int64_t number;  ///< among those of the file
    std::vector<std::int32_t> label;
};

std::vector<LabelledPicture> labelled_pictures(const data::SampleFile& samples, Pulse& pulse) {
    pulse.doing(fmt::format("reading the labels of the pictures in {}", samples.path().string()));
    std::vector<LabelledPicture> pictures;
    data::Sample sample;
    for (std::int64_t i = 0; i < samples.size(); ++i) {
        samples.read(i, sample, data::SampleFields::text, pulse);
        pulse.beat();
        bool after_picture = false;
        for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
            if (samples.markers().kind_of(sample.tokens[t])) {
                pictures.push_back({static_cast<std::int64_t>(pictures.size()), {}});
                after_picture = true;
            } else if (after_picture && (sample.flags[t] & data::kCountsForExactMatch) != 0) {
                pictures.back().label.push_back(sample.tokens[t]);
            }
        }
    }
    return pictures;
}

/// For every picture the number of the one that takes its place. In the order of the labels, a picture and
/// the one that lies as far behind it as the most frequent label is frequent never have the same label.
std::vector<std::int64_t> exchange(std::vector<LabelledPicture> pictures, const std::string& path) {
    std::stable_sort(pictures.begin(), pictures.end(),
                     [](const auto& a, const auto& b) { return a.label < b.label; });
    std::size_t most = 0;
    for (std::size_t i = 0, run = 0; i < pictures.size(); ++i) {
        run = i > 0 && pictures[i].label == pictures[i - 1].label ? run + 1 : 1;
        most = std::max(most, run);
    }
    if (2 * most > pictures.size())
        throw Error(
            ExitCode::bad_data,
            fmt::format("{}: more than half of the pictures show the same; they cannot be exchanged", path));
    std::vector<std::int64_t> sources(pictures.size());
    for (std::size_t i = 0; i < pictures.size(); ++i)
        sources[static_cast<std::size_t>(pictures[i].number)] = pictures[(i + most) % pictures.size()].number;
    return sources;
}

}  // namespace

void exchange_pictures(const comm::Communicator& world, data::SampleFile& samples, Pulse& pulse) {
    std::vector<std::int64_t> sources;
    comm::agree(world, [&] {
        if (world.rank() == 0) sources = exchange(labelled_pictures(samples, pulse), samples.path().string());
    });
    world.broadcast(sources);
    samples.replace_pictures(std::move(sources));
}

}  // namespace maestro::train
