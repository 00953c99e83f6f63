// MicroBatches: what the search of a sub-problem moves as one item. Of a section with one stage and one part
// these are samples, which are cut into micro-batches in the order that the search finds. The micro-batches
// of a pipeline are made before, of even length, because a pipeline loses more time with unlike micro-batches
// than with any order of them. So are those of a lane with parts, which wait for each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maestro::schedule {

class MicroBatches {
public:
    /// Every sample by itself.
    explicit MicroBatches(int samples = 0);

    std::size_t size() const { return ends_.size(); }
    std::span<const int> samples(std::size_t item) const {
        const int first = item == 0 ? 0 : ends_[item - 1];
        return std::span(samples_).subspan(first, ends_[item] - first);
    }
    int item_of(int sample) const { return item_of_[sample]; }
    void add(std::span<const int> samples);

private:
    std::vector<int> samples_, ends_;  ///< of all items, one after another
    std::vector<int> item_of_;         ///< [sample]
};

/// How samples with and without work in other sections share the micro-batches and buckets of a section.
enum class Kinds {
    apart,     ///< not at all: text never waits for pictures, but there may be one micro-batch more
    together,  ///< text fills those with pictures, so that all are of even length
};

/// Cuts the samples of every group into as few micro-batches of at most `size` samples as possible, of even
/// length. cost, other_work, group_of: [sample]. First by descending cost to the shortest micro-batch that
/// is not full (LPT with a limit of the number, as in Dell'Amico and Martello, "Bounds for the cardinality
/// constrained P||Cmax problem", 2001), then by exchanges while the longest or shortest gains by one.
MicroBatches cut_evenly(const std::vector<double>& cost, const std::vector<std::uint8_t>& other_work,
                        const std::vector<int>& group_of, int groups, int size, Kinds kinds);

}  // namespace maestro::schedule
