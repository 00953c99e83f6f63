// Which rank of a replica holds which rows of a packed micro-batch. The cp ranks share out the sequences,
// each in a slice of its own; the tp ranks of a slice (sequence parallelism, Korthikanti et al., MLSys 2023)
// hold consecutive parts of it. A pure function of lengths and degrees: the transformer, vision and edges ask
// here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maestro::parallel {

/// Degrees of a lane: its ranks are ordered [cp][tp].
struct Degrees {
    int cp = 1, tp = 1;
    int ranks() const { return cp * tp; }
    bool operator==(const Degrees&) const = default;
};

/// Rows [first, first + count) of a sequence, count > 0.
struct RowRun {
    int sequence = 0;
    std::int64_t first = 0, count = 0;
    bool operator==(const RowRun&) const = default;
};

/// Rows of a sequence that one rank holds, one after another.
struct Holding {
    std::int64_t first = 0, count = 0;  ///< rows of the sequence
    int rank = 0;                       ///< in the lane
    std::int64_t local = 0;             ///< where the first of them is among the rank's rows
    bool operator==(const Holding&) const = default;
};

enum class Attention {
    causal,         ///< every sequence is cut in 2 cp chunks; slice i has chunks i and 2 cp - 1 - i, so that
                    ///< all have the same work (zigzag, as in Llama 3)
    bidirectional,  ///< sequences are dealt whole where that is even enough, the largest are cut otherwise
};

/// How much more than an even share the fullest slice of sequences that are dealt whole may have.
inline constexpr double kUneven = 1.1;

class Partition {
public:
    /// `lengths`: rows of each sequence, whole multiples of `unit`; no unit is divided.
    Partition(std::span<const std::int64_t> lengths, Attention attention, Degrees degrees,
              std::int64_t unit = 1);

    Degrees degrees() const { return degrees_; }
    int sequences() const { return static_cast<int>(cut_.size()); }
    std::int64_t rows() const { return offsets_.back(); }  ///< of all sequences
    /// Packed rows at which the sequences begin; one more at the end.
    std::span<const std::int32_t> offsets() const { return offsets_; }
    /// Of a slice, in the order in which its ranks hold them: sequences ascend, and rows within each.
    std::span<const RowRun> slice(int cp) const { return slices_[cp]; }
    /// Rows of each tp rank of a slice.
    std::span<const std::int64_t> shares(int cp) const { return shares_[cp]; }
    std::int64_t slice_rows(int cp) const;
    /// Are its rows in more than one slice?
    bool is_cut(int sequence) const { return cut_[sequence]; }
    /// Of one rank, in its order.
    std::vector<RowRun> runs(int cp, int tp) const;
    /// By sequence, ascending: each row once.
    std::vector<std::vector<Holding>> holdings() const;

private:
    Degrees degrees_;
    std::vector<std::int32_t> offsets_;
    std::vector<std::vector<RowRun>> slices_;
    std::vector<std::vector<std::int64_t>> shares_;
    std::vector<bool> cut_;
};

}  // namespace maestro::parallel
