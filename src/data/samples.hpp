// Samples: what a run trains on or plans for. A file of samples (SampleFile), or sizes without contents
// (SampleLengths).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/pulse.hpp"
#include "data/sample_index.hpp"
#include "spec/item.hpp"

namespace maestro::data {

/// Bits of Sample::flags.
inline constexpr std::uint8_t kCountsForExactMatch = 1;

/// What read() reads of a sample; the rest stays empty. Sizes of pictures are always set.
enum class SampleFields {
    all,
    text,    ///< tokens, weights and flags
    pixels,  ///< of the pictures
    sizes,   ///< nothing more: the sizes of pictures alone
};
constexpr bool has_text(SampleFields fields) {
    return fields == SampleFields::all || fields == SampleFields::text;
}
constexpr bool has_pixels(SampleFields fields) {
    return fields == SampleFields::all || fields == SampleFields::pixels;
}

struct StoredItem {
    Item item;
    /// Of a picture: pixels [height, width, channels]. Empty where has_pixels(fields) is false, and of
    /// samples without contents.
    std::vector<std::uint8_t> data;
};

/// A sample as stored: one marker token per item. weights[i] and flags[i] belong to token i as a target;
/// they are 0 at the first token and at markers, which nothing predicts.
struct Sample {
    std::int64_t id = -1;
    std::vector<std::int32_t> tokens;
    std::vector<float> weights;
    std::vector<std::uint8_t> flags;
    std::vector<StoredItem> items;  ///< in the order of their markers
};

/// What models have to agree with.
struct ContentRange {
    std::int32_t vocabulary = 0;  ///< token ids are in [0, vocabulary)
    int channels = 0;             ///< of a pixel
};

class Samples {
public:
    virtual ~Samples() = default;

    const SampleIndex& index() const { return index_; }
    std::int64_t size() const { return index_.size(); }
    /// What messages call them: the path of their file, or the table of the deck.
    const std::string& name() const { return name_; }
    /// The range of the contents; nothing where there are none.
    virtual std::optional<ContentRange> contents() const = 0;
    /// The tokens that mark the places of items.
    virtual Markers markers() const = 0;
    /// Identifies the samples, independent of where they are.
    virtual std::uint64_t identity() const = 0;
    /// Reads sample i into `sample`, whose memory is reused. Any thread. Beats after every MiB.
    virtual void read(std::int64_t i, Sample& sample, SampleFields fields, Pulse& pulse) const = 0;
    /// Bytes that these fields of the sample take in memory.
    virtual std::int64_t bytes(std::int64_t i, SampleFields fields) const = 0;

protected:
    explicit Samples(std::string name) : name_(std::move(name)) {}
    Samples(const Samples&) = default;
    Samples(Samples&&) = default;
    Samples& operator=(const Samples&) = delete;
    Samples& operator=(Samples&&) = delete;

    std::string name_;
    SampleIndex index_;
};

}  // namespace maestro::data
