// Samples that are drawn from a distribution.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.hpp"
#include "data/sample_lengths.hpp"

namespace maestro::data {

namespace {

/// Whole numbers from `least` to `most`, each with the same probability but for rounding.
std::int64_t whole_number(double uniform, std::int64_t least, std::int64_t most) {
    const auto step = static_cast<std::int64_t>(uniform * static_cast<double>(most - least + 1));
    return std::min(least + step, most);
}

/// The sides of pictures, as multiples of a unit.
class Sides {
public:
    Sides(const Random& random, const std::vector<int>& bounds, std::int64_t unit)
        : random_(random),
          unit_(unit),
          least_((bounds.front() + unit - 1) / unit),
          most_(bounds.back() / unit) {}
    int of(std::uint64_t picture) const {
        return static_cast<int>(unit_ * whole_number(random_.uniform(picture), least_, most_));
    }

private:
    const Random& random_;
    std::int64_t unit_, least_, most_;
};

}  // namespace

SampleIndex draw_lengths(const SampleDistribution& d, Pulse& pulse) {
    constexpr std::uint64_t kSamplesPerBeat = 1 << 16;
    const Random tokens(d.seed, "lengths/tokens"), share(d.seed, "lengths/share"),
        pictures(d.seed, "lengths/pictures"), heights(d.seed, "lengths/height"),
        widths(d.seed, "lengths/width");
    const auto text_of = [&](std::uint64_t i) -> std::int64_t {
        if (d.shape == "fixed") return d.tokens;
        if (d.shape == "uniform") return whole_number(tokens.uniform(i), d.least_tokens, d.most_tokens);
        // Compared as numbers with fractions, because far outside no whole number would hold it.
        const double drawn = static_cast<double>(d.tokens) * std::exp(d.spread * tokens.normal(i));
        return std::llround(
            std::clamp(drawn, static_cast<double>(d.least_tokens), static_cast<double>(d.most_tokens)));
    };
    SampleIndex index;
    std::vector<Item> items;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(d.samples); ++i) {
        items.clear();
        if (share.uniform(i) < d.picture_share) {
            const Sides height(heights, d.picture_height, d.picture_unit),
                width(widths, d.picture_width, d.picture_unit);
            const std::int64_t count = whole_number(pictures.uniform(i), 1, d.pictures);
            for (std::uint64_t j = 0; j < static_cast<std::uint64_t>(count); ++j) {
                const std::uint64_t picture = i * kMostPictures + j;
                items.push_back({height.of(picture), width.of(picture)});
            }
        }
        const std::int64_t text = text_of(i);
        index.add(text, items, static_cast<double>(text - 1));
        if (i % kSamplesPerBeat == 0) pulse.beat();
    }
    return index;
}

}  // namespace maestro::data
