// SampleIndex: the lengths, picture sizes, loss weights and checksums of all samples, in flat arrays of 32
// bytes per sample and 28 per picture (docs/file_formats.md, /index). Read as a whole when a sample file is
// opened. Of samples without contents it is made of their sizes: 24 bytes per sample and 16 per picture.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/pulse.hpp"
#include "data/container.hpp"
#include "data/raw_file.hpp"
#include "spec/item.hpp"

namespace maestro::data {

/// Largest height or width of a picture, pixels.
inline constexpr int kLargestPicture = 4096;

/// Attributes of a sample file that its index is checked against.
struct SampleHeader {
    std::int64_t vocabulary = 0;
    std::int64_t marker = 0;
    std::int64_t channels = 0;
    std::uint64_t identity = 0;  ///< as stored
};

class SampleIndex {
public:
    /// An index without samples, to be assigned to.
    SampleIndex() = default;
    /// Reads the arrays and checks them against the header and against the file's numbers of tokens and of
    /// bytes of pixels. Throws Error(bad_data). Beats on the way, because an index of a billion samples takes
    /// minutes.
    SampleIndex(const Container& container, const RawFile& file, const SampleHeader& header,
                std::int64_t tokens, std::int64_t pixels, Pulse& pulse);

    /// Appends a sample without contents: `text` tokens and a marker for each item, which stand before the
    /// text, `weight` the sum of the loss weights. Does not change checksum().
    void add(std::int64_t text, std::span<const Item> items, double weight);

    std::int64_t size() const { return static_cast<std::int64_t>(sample_offsets_.size()) - 1; }
    std::int64_t tokens(std::int64_t i) const { return at(sample_offsets_, i + 1) - at(sample_offsets_, i); }
    /// Sum of the sample's loss weights.
    double weight(std::int64_t i) const { return at(weights_, i); }
    /// In the order of their markers.
    std::span<const Item> items(std::int64_t i) const {
        return std::span(items_).subspan(
            static_cast<std::size_t>(at(picture_offsets_, i)),
            static_cast<std::size_t>(at(picture_offsets_, i + 1) - at(picture_offsets_, i)));
    }
    /// Position of each item's marker among the sample's tokens. Empty before SampleFile::find_markers(), and
    /// for a sample without items.
    std::span<const std::int32_t> markers(std::int64_t i) const {
        if (markers_.empty()) return {};
        return std::span(markers_).subspan(static_cast<std::size_t>(at(picture_offsets_, i)),
                                           items(i).size());
    }
    /// The value that the file's attribute index_checksum must have.
    std::uint64_t checksum() const { return checksum_; }

private:
    friend class SampleFile;
    template <class T>
    static T at(const std::vector<T>& values, std::int64_t i) {
        return values[i];
    }
    void check(const RawFile& file, const SampleHeader& header, std::int64_t tokens, std::int64_t pixels,
               Pulse& pulse) const;
    std::uint64_t checksum_of(const SampleHeader& header, Pulse& pulse) const;

    std::vector<std::int64_t> sample_offsets_{0};   ///< [N + 1], tokens
    std::vector<std::int64_t> picture_offsets_{0};  ///< [N + 1], pictures
    std::vector<Item> items_;                       ///< [M]
    std::vector<std::int64_t> pixel_offsets_{0};    ///< [M + 1], bytes; of contents
    std::vector<std::uint64_t> checksums_;          ///< [N], of contents
    std::vector<std::uint64_t> pixel_checksums_;    ///< [M], of contents
    std::vector<double> weights_;                   ///< [N]
    std::vector<std::int32_t> markers_;             ///< [M], or none
    std::uint64_t checksum_ = 0;
};

}  // namespace maestro::data
