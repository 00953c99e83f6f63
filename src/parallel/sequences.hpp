// The sequences of a micro-batch as one slice of a replica's ranks sees them: which rows are here, at which
// positions, and what attends to what.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/arena.hpp"
#include "base/tensor.hpp"
#include "ops/attention/attention.hpp"
#include "parallel/partition.hpp"
#include "parallel/peers.hpp"

namespace maestro::parallel {

struct Sequences {
    /// Of the slice that `peers` are in. cos and sin are left to the caller.
    Sequences(Partition partition, Attention attention, const Peers& peers);
    /// Hands the device the places of rows, before they are used; they stay where they are.
    void hand_over(backend::Backend& backend, backend::Arena& saved);

    Partition partition;
    std::int64_t rows = 0;             ///< of the slice
    std::vector<std::int64_t> shares;  ///< of its tp ranks
    Tensor cos, sin;                   ///< rotations, [rows, head_dim / 2]

    /// Of the slice's rows among themselves; where whole sequences are gathered (all-to-all), of all rows.
    ops::Visible own;
    /// Ring: rows of this slice whose keys go round, because their sequence is cut, and how many each slice
    /// sends so.
    std::vector<std::int32_t> travelling;
    Tensor travelling_places;
    std::vector<std::int64_t> travelling_rows;
    std::vector<ops::Visible> others;  ///< by slice: of this slice's queries among those keys
    /// All-to-all: rows of each slice, and where its rows, one slice after another, stand among the packed
    /// rows of all.
    std::vector<std::int64_t> slice_rows;
    std::vector<std::int32_t> packed;
    Tensor packed_places;

    bool ring() const;  ///< do any keys go round?
};

/// Of a list by packed row, the part that the runs hold, in their order. `first[s]`: packed row at which
/// sequence s begins.
template <class T>
std::vector<T> pick(const std::vector<T>& all, std::span<const RowRun> runs,
                    std::span<const std::int32_t> first) {
    std::vector<T> part;
    for (const RowRun& run : runs) {
        const auto begin = all.begin() + first[run.sequence] + run.first;
        part.insert(part.end(), begin, begin + run.count);
    }
    return part;
}

}  // namespace maestro::parallel
