// The rows of a tensor that belong to each rank of a process group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "base/tensor.hpp"

namespace maestro::collective {

/// A tensor that holds the rows of all ranks, concatenated in the order of ranks.
class RankRows {
public:
    RankRows(const Tensor& whole, std::span<const std::int64_t> rows, int size) : whole_(whole) {
        begin_.reserve(rows.size() + 1);
        begin_.push_back(0);
        for (const std::int64_t count : rows) begin_.push_back(begin_.back() + count);
        MAESTRO_CHECK(
            static_cast<int>(rows.size()) == size && whole.rank == 2 && whole.dim(0) == begin_.back(),
            "{} on {} ranks", whole.describe(), size);
    }
    /// Whether all ranks have the same number of rows.
    bool equal() const {
        for (std::size_t r = 1; r < begin_.size(); ++r)
            if (begin_[r] - begin_[r - 1] != begin_[1]) return false;
        return true;
    }
    const Tensor& whole() const { return whole_; }
    Tensor operator[](int rank) const {
        const auto r = static_cast<std::size_t>(rank);
        return whole_.slice(begin_[r], begin_[r + 1]);
    }
    /// The elements [at, at + step) of a rank's rows, as a flat tensor; what lies behind their end is left
    /// out.
    Tensor segment(int rank, std::int64_t at, std::int64_t step) const {
        return segment_of((*this)[rank], at, step);
    }
    static Tensor segment_of(const Tensor& tensor, std::int64_t at, std::int64_t step) {
        const Tensor flat = tensor.reshape({tensor.size()});
        return flat.slice(std::min(at, flat.size()), std::min(at + step, flat.size()));
    }
    /// Elements of the rank that has most.
    std::int64_t longest() const {
        std::int64_t rows = 0;
        for (std::size_t r = 1; r < begin_.size(); ++r) rows = std::max(rows, begin_[r] - begin_[r - 1]);
        return rows * whole_.columns();
    }

private:
    Tensor whole_;
    std::vector<std::int64_t> begin_;  ///< first row by rank
};

/// Elements of a segment where segments cross between nodes while others are exchanged within them: so many
/// segments that both go on at once nearly all the time, and long enough that latencies do not count.
inline std::int64_t node_segment(std::int64_t longest) {
    constexpr std::int64_t kLeast = std::int64_t{1} << 15, kMost = std::int64_t{1} << 20, kPieces = 8;
    return std::clamp(longest / kPieces, kLeast, kMost);
}

/// Checks that `local` has the type and the form of these rows of a rank.
inline void check_same_form(const Tensor& local, const Tensor& rows) {
    MAESTRO_CHECK(local.dtype == rows.dtype && local.rank == 2 && local.dim(0) == rows.dim(0) &&
                      local.columns() == rows.columns(),
                  "{} where {} belongs", local.describe(), rows.describe());
}

}  // namespace maestro::collective
