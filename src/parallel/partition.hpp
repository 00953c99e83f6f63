// Which rank of a replica holds which rows of a packed micro-batch. The cp ranks share the sequences: each
// has a slice of them. The tp ranks of a slice hold consecutive parts of it (sequence parallelism,
// Korthikanti et al., MLSys 2023). A pure function of lengths and degrees, used by the models and by the
// edges between sections.
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

/// Consecutive rows of a sequence on one rank.
struct RowPlacement {
    std::int64_t first = 0, count = 0;  ///< rows of the sequence
    int rank = 0;                       ///< in the replica
    std::int64_t local = 0;             ///< the number of the first of them among the rank's rows
    bool operator==(const RowPlacement&) const = default;
};

enum class AttentionMask {
    causal,  ///< every sequence is cut into 2 cp chunks; slice i has chunks i and 2 cp - 1 - i, so that
             ///< all slices have the same work (zigzag, as in Llama 3)
    bidirectional,  ///< sequences stay whole where the slices come out even enough; else the longest are cut
};

/// Rows of the largest slice over an even share, at most, where sequences stay whole.
inline constexpr double kMaxImbalance = 1.1;

class Partition {
public:
    /// `lengths`: rows of each sequence, multiples of `unit`; no unit is divided between ranks.
    Partition(std::span<const std::int64_t> lengths, AttentionMask mask, Degrees degrees,
              std::int64_t unit = 1);

    Degrees degrees() const { return degrees_; }
    int sequences() const { return static_cast<int>(cut_.size()); }
    std::int64_t rows() const { return offsets_.back(); }  ///< of all sequences
    /// Packed rows at which the sequences begin, and the number of rows at the end.
    std::span<const std::int32_t> offsets() const { return offsets_; }
    /// The rows of a slice, in the order in which its ranks hold them: sequences ascend, and rows within
    /// each.
    std::span<const RowRange> slice(int cp) const { return slices_[cp]; }
    /// Rows of each tp rank of a slice.
    std::span<const std::int64_t> tp_rows(int cp) const { return tp_rows_[cp]; }
    std::int64_t slice_rows(int cp) const;
    /// Whether the sequence has rows in more than one slice.
    bool is_cut(int sequence) const { return cut_[sequence]; }
    /// The rows of one rank, in its order.
    std::vector<RowRange> rows_of(int cp, int tp) const;
    /// By sequence, rows ascending: which rank holds them. Each row once.
    std::vector<std::vector<RowPlacement>> placements() const;

private:
    Degrees degrees_;
    std::vector<std::int32_t> offsets_;
    std::vector<std::vector<RowRange>> slices_;
    std::vector<std::vector<std::int64_t>> tp_rows_;
    std::vector<bool> cut_;
};

}  // namespace maestro::parallel
