#include "parallel/partition.hpp"

#include <algorithm>
#include <numeric>

#include "base/narrow.hpp"
#include "base/shard.hpp"

namespace maestro::parallel {

namespace {

/// Which slice each sequence is assigned to.
struct Assignment {
    std::vector<int> slice;         ///< by sequence; -1: cut, every slice gets a part
    std::int64_t largest_load = 0;  ///< units of the slice that has most
};

/// Cuts the first `cut` sequences of `longest_first` and assigns the others in turn to the slice with the
/// fewest units so far (longest processing time first, Graham 1969).
Assignment assign(std::span<const std::int64_t> units, std::span<const int> longest_first, std::size_t cut,
                  int slices) {
    Assignment result{std::vector<int>(units.size(), -1), 0};
    std::vector<std::int64_t> load(static_cast<std::size_t>(slices), 0);
    for (std::size_t i = 0; i < longest_first.size(); ++i) {
        const int sequence = longest_first[i];
        if (i < cut) {
            for (int c = 0; c < slices; ++c) load[c] += part_of(units[sequence], c, slices).size();
            continue;
        }
        const auto least = std::min_element(load.begin(), load.end());
        result.slice[sequence] = static_cast<int>(least - load.begin());
        *least += units[sequence];
    }
    result.largest_load = *std::max_element(load.begin(), load.end());
    return result;
}

/// Cuts as few sequences as leave the largest slice within kMaxImbalance of an even share. A cut sequence
/// costs communication in every layer, a whole one costs none.
Assignment assign(std::span<const std::int64_t> units, int slices) {
    std::vector<int> longest_first(units.size());
    std::iota(longest_first.begin(), longest_first.end(), 0);
    // Stable, because every rank must come to the same assignment, also for sequences of equal length.
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](int a, int b) { return units[a] > units[b]; });
    const std::int64_t total = std::accumulate(units.begin(), units.end(), std::int64_t{0});
    const double max_load = kMaxImbalance * static_cast<double>((total + slices - 1) / slices);
    for (std::size_t cut = 0;; ++cut) {
        Assignment assignment = assign(units, longest_first, cut, slices);
        if (static_cast<double>(assignment.largest_load) <= max_load || cut >= units.size())
            return assignment;
    }
}

}  // namespace

Partition::Partition(std::span<const std::int64_t> lengths, AttentionMask mask, Degrees degrees,
                     std::int64_t unit)
    : degrees_(degrees),
      offsets_{0},
      slices_(static_cast<std::size_t>(degrees.cp)),
      tp_rows_(static_cast<std::size_t>(degrees.cp)),
      cut_(lengths.size(), false) {
    std::vector<std::int64_t> units;
    for (const std::int64_t length : lengths) {
        MAESTRO_CHECK(length >= 0 && length % unit == 0, "{} rows in units of {}", length, unit);
        units.push_back(length / unit);
        offsets_.push_back(narrow<std::int32_t>(offsets_.back() + length, "rows of a micro-batch"));
    }
    const int cp = degrees.cp;
    const auto add = [&](int slice, std::size_t sequence, Range part) {
        if (part.size() == 0) return;
        // The two middle chunks of a causal sequence are neighbours and belong to the same slice: they become
        // one range, so that what is sent or attended to in ranges has no seam there.
        std::vector<RowRange>& ranges = slices_[slice];
        const int number = static_cast<int>(sequence);
        if (!ranges.empty() && ranges.back().sequence == number &&
            ranges.back().first + ranges.back().count == part.begin * unit)
            ranges.back().count += part.size() * unit;
        else
            ranges.push_back({number, part.begin * unit, part.size() * unit});
    };
    const Assignment assigned = mask == AttentionMask::bidirectional && cp > 1
                                    ? assign(units, cp)
                                    : Assignment{std::vector<int>(units.size(), cp > 1 ? -1 : 0), 0};
    // Sequences are added in their order, so that every slice has them in packed order. Masks and targets
    // rely on it.
    for (std::size_t s = 0; s < units.size(); ++s) {
        cut_[s] = assigned.slice[s] < 0;
        for (int c = 0; c < cp; ++c) {
            if (!cut_[s]) {
                if (assigned.slice[s] == c) add(c, s, {0, units[s]});
            } else if (mask == AttentionMask::bidirectional) {
                add(c, s, part_of(units[s], c, cp));
            } else {
                add(c, s, part_of(units[s], c, 2 * cp));
                add(c, s, part_of(units[s], 2 * cp - 1 - c, 2 * cp));
            }
        }
    }
    // The tp ranks divide a slice regardless of sequences: between the GEMMs no operation mixes rows.
    for (int c = 0; c < cp; ++c) {
        std::int64_t total_units = 0;
        for (const RowRange& range : slices_[c]) total_units += range.count / unit;
        for (int t = 0; t < degrees.tp; ++t)
            tp_rows_[c].push_back(part_of(total_units, t, degrees.tp).size() * unit);
    }
}

std::int64_t Partition::slice_rows(int cp) const {
    return std::accumulate(tp_rows_[cp].begin(), tp_rows_[cp].end(), std::int64_t{0});
}

std::vector<RowRange> Partition::rows_of(int cp, int tp) const {
    const auto& tp_rows = tp_rows_[cp];
    std::int64_t skip = std::accumulate(tp_rows.begin(), tp_rows.begin() + tp, std::int64_t{0}),
                 remaining = tp_rows[tp];
    std::vector<RowRange> local;
    for (const RowRange& range : slices_[cp]) {
        const std::int64_t from = std::min(skip, range.count),
                           count = std::min(range.count - from, remaining);
        if (count > 0) local.push_back({range.sequence, range.first + from, count});
        skip -= from;
        remaining -= count;
    }
    return local;
}

std::vector<std::vector<RowPlacement>> Partition::placements() const {
    std::vector<std::vector<RowPlacement>> by_sequence(cut_.size());
    for (int c = 0; c < degrees_.cp; ++c)
        for (int t = 0; t < degrees_.tp; ++t) {
            std::int64_t local = 0;
            for (const RowRange& range : rows_of(c, t)) {
                by_sequence[range.sequence].push_back({range.first, range.count, c * degrees_.tp + t, local});
                local += range.count;
            }
        }
    for (auto& placements : by_sequence)
        std::sort(placements.begin(), placements.end(),
                  [](const RowPlacement& a, const RowPlacement& b) { return a.first < b.first; });
    return by_sequence;
}

}  // namespace maestro::parallel
