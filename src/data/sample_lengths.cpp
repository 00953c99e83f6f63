#include "data/sample_lengths.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/checksum.hpp"

namespace maestro::data {

namespace {

constexpr std::int64_t kTextBytes = 9;  ///< of a token in memory: id, weight and flags

}  // namespace

SampleLengths::SampleLengths(std::string name, SampleIndex index, std::int32_t marker)
    : Samples(std::move(name)), marker_(marker) {
    index_ = std::move(index);
}

std::uint64_t SampleLengths::identity() const {
    Checksum checksum;
    for (std::int64_t i = 0; i < size(); ++i) {
        const std::int64_t tokens = index_.tokens(i);
        const double weight = index_.weight(i);
        checksum.add(&tokens, sizeof tokens);
        checksum.add(&weight, sizeof weight);
        for (const Item& item : index_.items(i)) {
            checksum.add(&item.height, sizeof item.height);
            checksum.add(&item.width, sizeof item.width);
        }
    }
    return checksum.value();
}

void SampleLengths::read(std::int64_t i, Sample& sample, SampleFields fields, Pulse&) const {
    MAESTRO_CHECK(i >= 0 && i < size(), "sample {} of {}", i, size());
    sample.id = i;
    const std::span<const Item> items = index_.items(i);
    const auto tokens = static_cast<std::size_t>(has_text(fields) ? index_.tokens(i) : 0);
    sample.tokens.assign(tokens, marker_ == 0 ? 1 : 0);
    sample.weights.assign(tokens, 0);
    sample.flags.assign(tokens, 0);
    if (has_text(fields)) {
        std::fill_n(sample.tokens.begin(), items.size(), marker_);
        std::fill_n(sample.weights.rbegin(), static_cast<std::int64_t>(index_.weight(i)), 1.0f);
    }
    sample.items.resize(items.size());
    for (std::size_t j = 0; j < items.size(); ++j) {
        sample.items[j].item = items[j];
        sample.items[j].data.clear();
    }
}

std::int64_t SampleLengths::bytes(std::int64_t i, SampleFields fields) const {
    return (has_text(fields) ? index_.tokens(i) * kTextBytes : 0) +
           static_cast<std::int64_t>(index_.items(i).size() * sizeof(StoredItem));
}

}  // namespace maestro::data
