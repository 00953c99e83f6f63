#include "workload/sample_table.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <utility>

namespace maestro::workload {

namespace {

/// Returns the `count` ids below `size` with the largest keys, in descending order; among equal keys the
/// lower id comes first. Memory is proportional to `count`.
template <class Key>
std::vector<std::int64_t> largest(const SampleTable& table, int count, Key key) {
    using Entry = std::pair<std::int64_t, std::int64_t>;  // key, -id
    // A heap with the smallest of the best on top: each sample takes time logarithmic in `count` at most.
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> best;
    table.for_each([&](std::int64_t i) {
        best.emplace(key(i), -i);
        if (best.size() > static_cast<std::size_t>(count)) best.pop();
    });
    std::vector<std::int64_t> ids(best.size());
    for (auto id = ids.rbegin(); id != ids.rend(); ++id, best.pop()) *id = -best.top().second;
    return ids;
}

}  // namespace

SampleTable::SampleTable(const data::SampleIndex& index, std::vector<Section> sections)
    : index_(&index), sections_(std::move(sections)), lengths_(sections_.size()) {}

const SampleTable::Lengths& SampleTable::lengths(int section) const {
    std::optional<Lengths>& found = lengths_[static_cast<std::size_t>(section)];
    if (found) return *found;
    found.emplace();
    const auto add = [&](double rows) {
        found->longest = std::max(found->longest, rows);
        found->sum += rows;
        found->squares += rows * rows;
    };
    for_each([&](std::int64_t i) {
        if (activates(i, section)) ++found->samples;
        if (!units(section).encodes()) return add(static_cast<double>(length(i, section)));
        for (const Item& item : items(i))
            if (units(section).reads(item.kind)) add(static_cast<double>(units(section).rows(item)));
    });
    return *found;
}

void SampleTable::keep_extremes(int most) {
    // Every bound of a micro-batch is a sum of the largest values of a function of the sizes of a sample that
    // grows with each of them: of one size, or of two (slot_rows.cpp). A sample that `most` others reach in
    // both sizes adds nothing to a sum of the largest.
    using Size = std::function<std::int64_t(std::int64_t)>;
    std::vector<Size> sizes{[this](std::int64_t i) { return tokens(i); },
                            [this](std::int64_t i) { return rows_in_all(items(i)); },
                            // The largest item of each kind.
                            [this](std::int64_t i) {
                                std::int64_t most_rows = 0;
                                for (const Item& item : items(i))
                                    most_rows = std::max(most_rows, rows_in_all({&item, 1}));
                                return most_rows;
                            }};
    for (int s = 0; s < static_cast<int>(sections_.size()); ++s) {
        lengths(s);
        sizes.push_back([this, s](std::int64_t i) { return length(i, s); });
        if (units(s).encodes())
            sizes.push_back([this, s](std::int64_t i) { return units(s).sequences(items(i)); });
    }
    std::set<std::int64_t> kept;
    for (const Size& size : sizes)
        for (const std::int64_t id : largest(*this, most, size)) kept.insert(id);
    for (std::size_t a = 0; a < sizes.size(); ++a)
        for (std::size_t b = a + 1; b < sizes.size(); ++b) {
            std::vector<std::array<std::int64_t, 3>> order;  // by the first size, descending
            for_each([&](std::int64_t i) { order.push_back({-sizes[a](i), -sizes[b](i), i}); });
            std::sort(order.begin(), order.end());
            std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> reached;
            for (const auto& [first, second, id] : order) {
                const bool full = reached.size() == static_cast<std::size_t>(most);
                if (full && -second <= reached.top()) continue;
                kept.insert(id);
                if (full) reached.pop();
                reached.push(-second);
            }
        }
    kept_.emplace(kept.begin(), kept.end());
}

model::SampleShape SampleTable::shape(std::int64_t sample) const {
    const std::span<const Item> of_sample = items(sample);
    return {.tokens = index_->tokens(sample),
            .items = {of_sample.begin(), of_sample.end()},
            .weight = weight(sample)};
}

bool SampleTable::activates(std::int64_t sample, int section) const {
    return units(section).sequences(items(sample)) > 0;
}

std::int64_t SampleTable::length(std::int64_t sample, int section) const {
    return units(section).unit() * output_rows(sample, section);
}

std::set<std::int64_t> SampleTable::sequence_rows(int section) const {
    std::set<std::int64_t> rows;
    for_each([&](std::int64_t i) {
        if (!units(section).encodes())
            rows.insert(length(i, section));
        else
            for (const Item& item : items(i))
                if (units(section).reads(item.kind)) rows.insert(units(section).rows(item));
    });
    return rows;
}

std::int64_t SampleTable::most_sequences(int samples, int section) const {
    if (!units(section).encodes()) return samples;
    return sum_of_largest(samples, [&](std::int64_t i) { return units(section).sequences(items(i)); });
}

std::int64_t SampleTable::output_rows(std::int64_t sample, int section) const {
    if (units(section).encodes()) return units(section).outputs(items(sample));
    return model::expanded_tokens(index_->tokens(sample), items(sample), encoders(section));
}

std::int64_t SampleTable::rows_of(std::span<const model::SampleShape> batch, int section) const {
    std::int64_t rows = 0;
    for (const model::SampleShape& shape : batch)
        rows += units(section).encodes()
                    ? units(section).outputs(shape.items)
                    : model::expanded_tokens(shape.tokens, shape.items, encoders(section));
    return rows;
}

std::vector<model::SampleShape> SampleTable::longest_micro_batch(int samples, int section) const {
    const auto [found, is_new] = micro_batches_.try_emplace({samples, section});
    if (is_new)
        for (const std::int64_t id :
             largest(*this, samples, [&](std::int64_t i) { return length(i, section); }))
            found->second.push_back(shape(id));
    return found->second;
}

std::vector<model::SampleShape> SampleTable::worst_micro_batch(int samples) const {
    const auto [found, is_new] = micro_batches_.try_emplace({samples, -1});
    if (is_new) found->second = find_worst_micro_batch(samples);
    return found->second;
}

std::int64_t SampleTable::once(const Key& key, const std::function<std::int64_t()>& compute) const {
    const auto [found, is_new] = once_.try_emplace(key, 0);
    if (is_new) found->second = compute();
    return found->second;
}

std::int64_t SampleTable::sum_of_largest(int samples,
                                         const std::function<std::int64_t(std::int64_t)>& value) const {
    std::int64_t sum = 0;
    for (const std::int64_t id : largest(*this, samples, value)) sum += value(id);
    return sum;
}

std::int64_t SampleTable::rows_in_all(std::span<const Item> of) const {
    std::int64_t rows = 0;
    for (const Section& section : sections_)
        if (section.units.encodes()) rows += section.units.outputs(of);
    return rows;
}

std::vector<model::SampleShape> SampleTable::find_worst_micro_batch(int samples) const {
    const auto by_text = largest(*this, samples, [&](std::int64_t i) { return index_->tokens(i); });
    const auto by_items = largest(*this, samples, [&](std::int64_t i) { return rows_in_all(items(i)); });
    std::vector<model::SampleShape> worst;
    for (std::size_t i = 0; i < by_items.size(); ++i) {
        worst.push_back(shape(by_items[i]));
        worst.back().tokens = std::max(worst.back().tokens, index_->tokens(by_text[i]));
    }
    // The largest item of each kind in the file bounds the attention of its encoder, whichever sample has it.
    std::array<std::span<const Item>, kItemKinds> largest_of_kind;
    for_each([&](std::int64_t i) {
        for (const Item& item : items(i))
            if (std::span<const Item>& most = largest_of_kind[static_cast<std::size_t>(item.kind)];
                rows_in_all({&item, 1}) > rows_in_all(most))
                most = {&item, 1};
    });
    for (const std::span<const Item> most : largest_of_kind)
        if (!most.empty() && !worst.empty()) worst.front().items.push_back(most.front());
    // The longest text may be of a sample without items, in which no token is a marker.
    for (auto& shape : worst) shape.tokens += static_cast<std::int64_t>(shape.items.size());
    return worst;
}

}  // namespace maestro::workload
