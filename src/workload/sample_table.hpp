// The sizes of every sample in every section: lengths, items, loss weight, rows on each edge. A view of
// the index of the samples by the units of the sections; it reads no sample data.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/pulse.hpp"
#include "data/sample_index.hpp"
#include "graph/section_graph.hpp"
#include "model/module.hpp"

namespace maestro::workload {

class SampleTable {
public:
    /// A section of the graph.
    struct Section {
        model::Units units;                       ///< of its model
        std::vector<model::Units> encoders = {};  ///< whose output rows replace its markers
    };
    /// `index` must outlive the table.
    SampleTable(const data::SampleIndex& index, std::vector<Section> sections);

    std::int64_t size() const { return index_->size(); }
    /// Calls visit(i) for every sample, and beats now and then: with a billion samples, each pass takes
    /// seconds to minutes, in which the other ranks would take this one for lost. After keep_extremes(),
    /// calls it for the samples that were kept.
    template <class Visit>
    void for_each(Visit&& visit) const {
        if (kept_) {
            for (const std::int64_t i : *kept_) visit(i);
            return;
        }
        for (std::int64_t i = 0; i < size(); ++i) {
            visit(i);
            if (i % kSamplesPerBeat == 0) pulse_->beat();
        }
    }
    /// What the sequences of a section have in common over the whole file.
    struct Lengths {
        double longest = 1, sum = 0, squares = 0;  ///< rows of a sequence
        std::int64_t samples = 0;                  ///< with work for the section
    };
    /// Returns them; computed by the first call, which is not thread-safe.
    const Lengths& lengths(int section) const;
    /// For a planner, which asks for the bounds of micro-batches of many layouts: from now on the functions
    /// below pass over few samples, those from which alone the bounds of up to `most` samples follow. Their
    /// results stay the same. Larger micro-batches must not be asked for.
    void keep_extremes(int most);
    /// The pulse of passes over the samples, which must outlive the table. Then for_each(), and all functions
    /// that look at the whole file, belong to the thread of the pulse.
    void set_pulse(Pulse& pulse) { pulse_ = &pulse; }
    /// Returns a copy. For what is needed of every sample of a file there are functions that copy nothing.
    model::SampleShape shape(std::int64_t sample) const;
    std::span<const Item> items(std::int64_t sample) const { return index_->items(sample); }
    /// Tokens as stored: an item is one marker token.
    std::int64_t tokens(std::int64_t sample) const { return index_->tokens(sample); }
    /// Positions of the markers among these tokens, see SampleIndex.
    std::span<const std::int32_t> markers(std::int64_t sample) const { return index_->markers(sample); }
    /// Sum of the loss weights of its targets.
    double weight(std::int64_t sample) const { return index_->weight(sample); }
    const model::Units& units(int section) const { return sections_[section].units; }
    std::span<const model::Units> encoders(int section) const { return sections_[section].encoders; }
    /// Whether the sample has work for the section: for an encoder items that it reads, always for others.
    bool activates(std::int64_t sample, int section) const;
    /// The rows of the sample within the section: tokens, or what an encoder makes of its items.
    std::int64_t length(std::int64_t sample, int section) const;
    /// Calls each(rows) for every sequence of the sample in the section: for an encoder the items that it
    /// reads, for others the sample itself.
    template <class Each>
    void for_each_sequence(std::int64_t sample, int section, const Each& each) const {
        const model::Units& of_section = units(section);
        if (!of_section.encodes()) return each(static_cast<double>(length(sample, section)));
        for (const Item& item : items(sample))
            if (of_section.reads(item.kind)) each(static_cast<double>(of_section.rows(item)));
    }
    /// All lengths, in rows, that a sequence of the section has in the file.
    std::set<std::int64_t> sequence_rows(int section) const;
    /// Returns the most sequences that a micro-batch of so many samples has in the section.
    std::int64_t most_sequences(int samples, int section) const;
    /// Returns the output rows of the section for the sample.
    std::int64_t output_rows(std::int64_t sample, int section) const;
    /// Returns the output rows for a micro-batch of these shapes.
    std::int64_t rows_of(std::span<const model::SampleShape> batch, int section) const;
    /// Returns the `samples` longest samples of the section: no micro-batch of that size has more rows.
    std::vector<model::SampleShape> longest_micro_batch(int samples, int section) const;
    /// Returns the sum of the `samples` largest values.
    std::int64_t sum_of_largest(int samples, const std::function<std::int64_t(std::int64_t)>& value) const;
    /// Returns compute(), or what it returned for these numbers before: for bounds over the whole file, of
    /// which a planner asks many times. Not thread-safe, like the functions for micro-batches above and
    /// below.
    using Key = std::array<int, 8>;
    std::int64_t once(const Key& key, const std::function<std::int64_t()>& compute) const;
    /// Returns a micro-batch that bounds every micro-batch of `samples` samples: the i-th longest text with
    /// the i-th largest items of the file.
    std::vector<model::SampleShape> worst_micro_batch(int samples) const;

private:
    std::vector<model::SampleShape> find_worst_micro_batch(int samples) const;
    /// The output rows of the items in all encoders together.
    std::int64_t rows_in_all(std::span<const Item> of) const;

    static constexpr std::int64_t kSamplesPerBeat = 1 << 16;
    static inline Pulse silent_;

    const data::SampleIndex* index_;
    Pulse* pulse_ = &silent_;
    std::vector<Section> sections_;
    mutable std::vector<std::optional<Lengths>> lengths_;  ///< by section
    mutable std::map<Key, std::int64_t> once_;
    /// By samples and section, -1 for the worst of all.
    mutable std::map<std::pair<int, int>, std::vector<model::SampleShape>> micro_batches_;
    std::optional<std::vector<std::int64_t>> kept_;  ///< ids, ascending
};

}  // namespace maestro::workload
