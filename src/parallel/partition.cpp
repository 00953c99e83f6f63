#include "parallel/partition.hpp"

#include <algorithm>
#include <numeric>

#include "base/check.hpp"
#include "base/shard.hpp"

namespace maestro::parallel {

namespace {

struct Deal {
    std::vector<int> slice;  ///< by sequence; -1: cut
    std::int64_t fullest = 0;
};

/// Cuts the `cut` longest sequences and deals the others, longest first, to the slice that has least.
Deal deal(std::span<const std::int64_t> units, std::span<const int> longest_first, std::size_t cut,
          int slices) {
    Deal result{std::vector<int>(units.size(), -1), 0};
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
    result.fullest = *std::max_element(load.begin(), load.end());
    return result;
}

/// As few cuts as leave the fullest slice near an even share; all are cut if none do.
Deal deal(std::span<const std::int64_t> units, int slices) {
    std::vector<int> longest_first(units.size());
    std::iota(longest_first.begin(), longest_first.end(), 0);
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](int a, int b) { return units[a] > units[b]; });
    const std::int64_t total = std::accumulate(units.begin(), units.end(), std::int64_t{0});
    const double enough = kUneven * static_cast<double>((total + slices - 1) / slices);
    for (std::size_t cut = 0;; ++cut) {
        Deal found = deal(units, longest_first, cut, slices);
        if (static_cast<double>(found.fullest) <= enough || cut >= units.size()) return found;
    }
}

}  // namespace

Partition::Partition(std::span<const std::int64_t> lengths, Attention attention, Degrees degrees,
                     std::int64_t unit)
    : degrees_(degrees),
      offsets_{0},
      slices_(static_cast<std::size_t>(degrees.cp)),
      shares_(static_cast<std::size_t>(degrees.cp)),
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
        std::vector<RowRun>& runs = slices_[slice];
        const int number = static_cast<int>(sequence);
        if (!runs.empty() && runs.back().sequence == number &&
            runs.back().first + runs.back().count == part.begin * unit)
            runs.back().count += part.size() * unit;
        else
            runs.push_back({number, part.begin * unit, part.size() * unit});
    };
    const Deal dealt = attention == Attention::bidirectional && cp > 1
                           ? deal(units, cp)
                           : Deal{std::vector<int>(units.size(), cp > 1 ? -1 : 0), 0};
    for (std::size_t s = 0; s < units.size(); ++s) {
        cut_[s] = dealt.slice[s] < 0;
        for (int c = 0; c < cp; ++c) {
            if (!cut_[s]) {
                if (dealt.slice[s] == c) add(c, s, {0, units[s]});
            } else if (attention == Attention::bidirectional) {
                add(c, s, part_of(units[s], c, cp));
            } else {
                add(c, s, part_of(units[s], c, 2 * cp));
                add(c, s, part_of(units[s], 2 * cp - 1 - c, 2 * cp));
            }
        }
    }
    for (int c = 0; c < cp; ++c) {
        std::int64_t total = 0;
        for (const RowRun& run : slices_[c]) total += run.count / unit;
        for (int t = 0; t < degrees.tp; ++t)
            shares_[c].push_back(part_of(total, t, degrees.tp).size() * unit);
    }
}

std::int64_t Partition::slice_rows(int cp) const {
    return std::accumulate(shares_[cp].begin(), shares_[cp].end(), std::int64_t{0});
}

std::vector<RowRun> Partition::runs(int cp, int tp) const {
    const auto& shares = shares_[cp];
    std::int64_t skip = std::accumulate(shares.begin(), shares.begin() + tp, std::int64_t{0}),
                 left = shares[tp];
    std::vector<RowRun> own;
    for (const RowRun& run : slices_[cp]) {
        const std::int64_t from = std::min(skip, run.count), count = std::min(run.count - from, left);
        if (count > 0) own.push_back({run.sequence, run.first + from, count});
        skip -= from;
        left -= count;
    }
    return own;
}

std::vector<std::vector<Holding>> Partition::holdings() const {
    std::vector<std::vector<Holding>> found(cut_.size());
    for (int c = 0; c < degrees_.cp; ++c)
        for (int t = 0; t < degrees_.tp; ++t) {
            std::int64_t local = 0;
            for (const RowRun& run : runs(c, t)) {
                found[run.sequence].push_back({run.first, run.count, c * degrees_.tp + t, local});
                local += run.count;
            }
        }
    for (auto& holdings : found)
        std::sort(holdings.begin(), holdings.end(),
                  [](const Holding& a, const Holding& b) { return a.first < b.first; });
    return found;
}

}  // namespace maestro::parallel
