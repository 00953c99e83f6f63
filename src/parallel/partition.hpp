// Which rank of a replica holds which rows of a packed micro-batch. The cp ranks share the sequences: each
// has a slice of them. The tp ranks of a slice hold consecutive parts of it (sequence parallelism,
// Korthikanti et al., MLSys 2023).
//
// A partition is a pure function of lengths and degrees. The models and the edges between sections compute it
// independently of each other, and no rank has to ask another one for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maestro::parallel {

/// Degrees of parallelism within a replica, whose ranks are ordered [cp][tp].
struct Degrees {
    int cp = 1, tp = 1;
    int ranks() const { return cp * tp; }
    bool operator==(const Degrees&) const = default;
};

/// Rows [first, first + count) of a sequence, count > 0.
struct RowRange {
    int sequence = 0;
    std::int64_t first = 0, count = 0;
    bool operator==(const RowRange&) const = default;
};

/// Consecutive rows of a sequence that one rank holds.
struct RowPlacement {
    std::int64_t first = 0, count = 0;  ///< rows of the sequence
    int rank = 0;                       ///< rank in the replica
    std::int64_t local = 0;             ///< local row of the first of them on that rank
    bool operator==(const RowPlacement&) const = default;
};

enum class AttentionMask {
    /// Every sequence is cut into 2 cp chunks, and slice i gets chunks i and 2 cp - 1 - i. A late chunk has
    /// more keys to attend to than an early one; in pairs all slices have the same work (zigzag, as in Llama
    /// 3).
    causal,
    /// Sequences stay whole where the slices come out even enough; otherwise the longest are cut into cp
    /// parts.
    bidirectional,
};

/// The largest slice may have this many times the rows of an even share before whole sequences are cut.
inline constexpr double kMaxImbalance = 1.1;

class Partition {
public:
    /// `lengths` are the rows of each sequence, multiples of `unit`. Rows of one unit stay on one rank.
    /// Throws Error(broken_invariant) for other lengths.
    Partition(std::span<const std::int64_t> lengths, AttentionMask mask, Degrees degrees,
              std::int64_t unit = 1);

    Degrees degrees() const { return degrees_; }
    int sequences() const { return static_cast<int>(cut_.size()); }
    std::int64_t rows() const { return offsets_.back(); }  ///< of all sequences
    /// Returns the packed row at which each sequence begins, followed by the number of rows.
    std::span<const std::int32_t> offsets() const { return offsets_; }
    /// Returns the rows of a slice in the order in which its ranks hold them: sequences ascend, and the rows
    /// within each.
    std::span<const RowRange> slice(int cp) const { return slices_[cp]; }
    /// Returns how many rows each tp rank of a slice holds.
    std::span<const std::int64_t> tp_rows(int cp) const { return tp_rows_[cp]; }
    std::int64_t slice_rows(int cp) const;
    /// Returns whether the sequence has rows in more than one slice.
    bool is_cut(int sequence) const { return cut_[sequence]; }
    /// Returns the rows of one rank in their local order.
    std::vector<RowRange> rows_of(int cp, int tp) const;
    /// Returns, by sequence, which ranks hold its rows. Rows ascend, and each occurs once.
    std::vector<std::vector<RowPlacement>> placements() const;

private:
    Degrees degrees_;
    std::vector<std::int32_t> offsets_;
    std::vector<std::vector<RowRange>> slices_;
    std::vector<std::vector<std::int64_t>> tp_rows_;
    std::vector<bool> cut_;
};

}  // namespace maestro::parallel
