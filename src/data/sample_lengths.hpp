// SampleLengths: samples of which only the sizes are known, from a CSV file (docs/file_formats.md) or drawn
// from a distribution (docs/deck.md). Enough to plan, to simulate and to run on an emulated device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/samples.hpp"
#include "spec/sample_distribution.hpp"

namespace maestro::data {

class SampleLengths final : public Samples {
public:
    /// The samples of an index without contents. `name` is what messages call them. Token `marker`, at least
    /// 0, stands for a picture.
    SampleLengths(std::string name, SampleIndex index, std::int32_t marker);

    std::optional<ContentRange> contents() const override { return {}; }
    Markers markers() const override { return Markers(marker_); }
    std::uint64_t identity() const override;
    /// Markers, then one token that stands for all text. The last tokens have loss weight 1, as many as the
    /// sample has targets. Pictures have no pixels.
    void read(std::int64_t i, Sample& sample, SampleFields fields, Pulse& pulse) const override;
    std::int64_t bytes(std::int64_t i, SampleFields fields) const override;

private:
    std::int32_t marker_;
};

/// The samples of a CSV file. Throws Error(input_missing, bad_data, all_ranks) with line and column.
SampleIndex read_lengths(const std::string& path, Pulse& pulse);
/// The same of its text; `path` is named in errors.
SampleIndex parse_lengths(std::string_view text, const std::string& path, Pulse& pulse);

/// Draws the samples of a distribution, whose numbers config::parse_deck() has checked. Sample i depends on
/// the distribution and i alone.
SampleIndex draw_lengths(const SampleDistribution& distribution, Pulse& pulse);

}  // namespace maestro::data
