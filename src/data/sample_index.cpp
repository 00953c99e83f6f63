#include "data/sample_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/checksum.hpp"

namespace maestro::data {
namespace {

static_assert(sizeof(Item) == 12);

constexpr std::array<std::string_view, 7> kIndexMembers{"sample_offsets", "picture_offsets", "picture_shape",
                                                        "pixel_offsets",  "checksum",        "loss_weight",
                                                        "pixel_checksum"};
constexpr std::size_t kElementsPerBeat = 1 << 20;
using StoredShape = std::array<std::int32_t, 2>;  ///< height and width of a picture

/// Calls visit(i) for i in [begin, end), with a beat now and then.
template <class Visit>
void for_each_index(std::size_t begin, std::size_t end, Pulse& pulse, Visit&& visit) {
    for (std::size_t i = begin; i < end; ++i) {
        visit(i);
        if (i % kElementsPerBeat == 0) pulse.beat();
    }
}

/// Calls visit(first, count) for ranges of the elements [0, size), with a beat after each.
template <class Visit>
void for_each_block(std::size_t size, Pulse& pulse, Visit&& visit) {
    for (std::size_t at = 0; at < size; at += kElementsPerBeat) {
        visit(at, std::min(kElementsPerBeat, size - at));
        pulse.beat();
    }
}

}  // namespace

SampleIndex::SampleIndex(const Container& container, const RawFile& file, const SampleHeader& header,
                         std::int64_t tokens, std::int64_t pixels, Pulse& pulse) {
    container.expect_group("/index", kIndexMembers);
    const auto load = [&]<class T>(std::string_view name, Element element, std::vector<T>& values,
                                   int columns = 0) {
        const Extent extent = container.array(name, element, columns);
        values.resize(static_cast<std::size_t>(extent.rows));  // bounded by the file's size
        file.read(values.data(), extent.rows * static_cast<std::int64_t>(sizeof(T)), extent.offset, name,
                  pulse);
    };
    load("index/sample_offsets", Element::i64, sample_offsets_);
    load("index/picture_offsets", Element::i64, picture_offsets_);
    const Extent shapes = container.array("index/picture_shape", Element::i32, 2);
    items_.resize(static_cast<std::size_t>(shapes.rows));
    std::vector<StoredShape> block;
    for_each_block(items_.size(), pulse, [&](std::size_t at, std::size_t count) {
        block.resize(count);
        const auto size = static_cast<std::int64_t>(sizeof(StoredShape));
        file.read(block.data(), static_cast<std::int64_t>(count) * size,
                  shapes.offset + static_cast<std::int64_t>(at) * size, "index/picture_shape", pulse);
        for (std::size_t i = 0; i < count; ++i) items_[at + i] = {block[i][0], block[i][1]};
    });
    load("index/pixel_offsets", Element::i64, pixel_offsets_);
    load("index/checksum", Element::u64, checksums_);
    load("index/loss_weight", Element::f64, weights_);
    load("index/pixel_checksum", Element::u64, pixel_checksums_);
    check(file, header, tokens, pixels, pulse);
    checksum_ = checksum_of(header, pulse);
}

void SampleIndex::add(std::int64_t text, std::span<const Item> items, double weight) {
    for (std::size_t i = 0; i < items.size(); ++i) markers_.push_back(static_cast<std::int32_t>(i));
    items_.insert(items_.end(), items.begin(), items.end());
    sample_offsets_.push_back(sample_offsets_.back() + static_cast<std::int64_t>(items.size()) + text);
    picture_offsets_.push_back(static_cast<std::int64_t>(items_.size()));
    weights_.push_back(weight);
}

void SampleIndex::check(const RawFile& file, const SampleHeader& header, std::int64_t tokens,
                        std::int64_t pixels, Pulse& pulse) const {
    const auto refuse_at = [&](std::string_view name, std::size_t element, std::string_view what) {
        refuse_element(file.path(), name, static_cast<std::int64_t>(element), what);
    };
    // Offsets start at 0, rise by at least `step`, and end at `total`.
    const auto check_offsets = [&](std::string_view name, const std::vector<std::int64_t>& offsets,
                                   std::int64_t step, std::int64_t total) {
        if (offsets.empty() || offsets.front() != 0) refuse_at(name, 0, "must be 0");
        for_each_index(1, offsets.size(), pulse, [&](std::size_t i) {
            if (offsets[i] > total || offsets[i] < 0 || offsets[i] - offsets[i - 1] < step)
                refuse_at(name, i,
                          fmt::format("{} after {} is out of order, or beyond the {} there are", offsets[i],
                                      offsets[i - 1], total));
        });
        if (offsets.back() != total)
            refuse_at(name, offsets.size() - 1,
                      fmt::format("ends at {} where there are {}", offsets.back(), total));
    };
    const auto expect_length = [&](std::string_view name, std::size_t length, std::size_t expected,
                                   std::string_view what) {
        if (length != expected) refuse_at(name, length, what);
    };
    check_offsets("index/sample_offsets", sample_offsets_, 1, tokens);
    if (size() < 1) refuse_at("index/sample_offsets", 0, "the file holds no samples");
    const auto samples = static_cast<std::size_t>(size());
    check_offsets("index/picture_offsets", picture_offsets_, 0, static_cast<std::int64_t>(items_.size()));
    expect_length("index/picture_offsets", picture_offsets_.size(), samples + 1,
                  "not as long as 'sample_offsets'");
    expect_length("index/checksum", checksums_.size(), samples, "not one for each sample");
    expect_length("index/loss_weight", weights_.size(), samples, "not one for each sample");
    for_each_index(0, samples, pulse, [&](std::size_t i) {
        if (!std::isfinite(weights_[i]) || weights_[i] < 0)
            refuse_at("index/loss_weight", i, fmt::format("{} is not a finite number >= 0", weights_[i]));
    });
    check_offsets("index/pixel_offsets", pixel_offsets_, 1, pixels);
    expect_length("index/pixel_offsets", pixel_offsets_.size(), items_.size() + 1,
                  "not one more than 'picture_shape'");
    expect_length("index/pixel_checksum", pixel_checksums_.size(), items_.size(), "not one for each picture");
    for_each_index(0, items_.size(), pulse, [&](std::size_t j) {
        const auto [height, width, kind] = items_[j];
        if (height < 1 || width < 1 || height > kLargestPicture || width > kLargestPicture)
            refuse_at("index/picture_shape", j,
                      fmt::format("a picture of {} x {}; sides are 1 to {} pixels", height, width,
                                  kLargestPicture));
        const std::int64_t bytes = pixel_offsets_[j + 1] - pixel_offsets_[j];
        if (bytes != height * width * header.channels)
            refuse_at(
                "index/pixel_offsets", j + 1,
                fmt::format("{} bytes for a picture of {} x {} x {}", bytes, height, width, header.channels));
    });
}

std::uint64_t SampleIndex::checksum_of(const SampleHeader& header, Pulse& pulse) const {
    Checksum checksum;
    const auto add = [&](const auto& values) {
        for_each_block(values.size(), pulse, [&](std::size_t at, std::size_t count) {
            checksum.add(values.data() + at, count * sizeof values.front());
        });
    };
    add(std::array<std::int64_t, 3>{header.vocabulary, header.marker, header.channels});
    add(std::array<std::uint64_t, 1>{header.identity});
    add(sample_offsets_);
    add(picture_offsets_);
    std::vector<StoredShape> block;
    for_each_block(items_.size(), pulse, [&](std::size_t at, std::size_t count) {
        block.clear();
        for (std::size_t i = at; i < at + count; ++i) block.push_back({items_[i].height, items_[i].width});
        checksum.add(block.data(), count * sizeof(StoredShape));
    });
    add(pixel_offsets_);
    add(checksums_);
    add(weights_);
    add(pixel_checksums_);
    return checksum.value();
}

}  // namespace maestro::data
