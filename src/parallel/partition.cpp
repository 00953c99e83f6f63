#include "parallel/partition.hpp"

#include <algorithm>
#include <numeric>

#include "base/check.hpp"
#include "base/shard.hpp"

namespace maestro::parallel {

namespace {

struct Assignment {
    std::vector<int> slice;  ///< by sequence; -1: cut
    std::int64_t largest = 0;
};

/// Cuts the `cut` longest sequences and assigns the others, longest first, to the slice with the fewest
/// units.
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
    result.largest = *std::max_element(load.begin(), load.end());
    return result;
}

/// Cuts as few sequences as leave the largest slice near an even share, or all of them.
Assignment assign(std::span<const std::int64_t> units, int slices) {
    std::vector<int> longest_first(units.size());
    std::iota(longest_first.begin(), longest_first.end(), 0);
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](int a, int b) { return units[a] > units[b]; });
    const std::int64_t total = std::accumulate(units.begin(), units.end(), std::int64_t{0});
    const double enough = kMaxImbalance * static_cast<double>((total + slices - 1) / slices);
    for (std::size_t cut = 0;; ++cut) {
        Assignment found = assign(units, longest_first, cut, slices);
        if (static_cast<double>(found.largest) <= enough || cut >= units.size()) return found;
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
        offsets_.push_back(offsets_.back() + static_cast<std::int32_t>(length));
    }
    const int cp = degrees.cp;
    const auto add = [&](int slice, std::size_t sequence, Range part) {
        if (part.size() == 0) return;
        std::vector<RowRange>& runs = slices_[slice];
        const int number = static_cast<int>(sequence);
        if (!runs.empty() && runs.back().sequence == number &&
            runs.back().first + runs.back().count == part.begin * unit)
            runs.back().count += part.size() * unit;
        else
            runs.push_back({number, part.begin * unit, part.size() * unit});
    };
    const Assignment assigned = mask == AttentionMask::bidirectional && cp > 1
                                    ? assign(units, cp)
                                    : Assignment{std::vector<int>(units.size(), cp > 1 ? -1 : 0), 0};
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
    for (int c = 0; c < cp; ++c) {
        std::int64_t total = 0;
        for (const RowRange& run : slices_[c]) total += run.count / unit;
        for (int t = 0; t < degrees.tp; ++t)
            tp_rows_[c].push_back(part_of(total, t, degrees.tp).size() * unit);
    }
}

std::int64_t Partition::slice_rows(int cp) const {
    return std::accumulate(tp_rows_[cp].begin(), tp_rows_[cp].end(), std::int64_t{0});
}

std::vector<RowRange> Partition::rows_of(int cp, int tp) const {
    const auto& tp_rows = tp_rows_[cp];
    std::int64_t skip = std::accumulate(tp_rows.begin(), tp_rows.begin() + tp, std::int64_t{0}),
                 left = tp_rows[tp];
    std::vector<RowRange> own;
    for (const RowRange& run : slices_[cp]) {
        const std::int64_t from = std::min(skip, run.count), count = std::min(run.count - from, left);
        if (count > 0) own.push_back({run.sequence, run.first + from, count});
        skip -= from;
        left -= count;
    }
    return own;
}

std::vector<std::vector<RowPlacement>> Partition::placements() const {
    std::vector<std::vector<RowPlacement>> found(cut_.size());
    for (int c = 0; c < degrees_.cp; ++c)
        for (int t = 0; t < degrees_.tp; ++t) {
            std::int64_t local = 0;
            for (const RowRange& run : rows_of(c, t)) {
                found[run.sequence].push_back({run.first, run.count, c * degrees_.tp + t, local});
                local += run.count;
            }
        }
    for (auto& holdings : found)
        std::sort(holdings.begin(), holdings.end(),
                  [](const RowPlacement& a, const RowPlacement& b) { return a.first < b.first; });
    return found;
}

}  // namespace maestro::parallel
