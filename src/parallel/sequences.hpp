// The sequences of a micro-batch as one cp rank sees them: which of their rows are in its slice, and which
// keys the queries of these rows attend to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "base/tensor.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/tables.hpp"
#include "parallel/mesh.hpp"
#include "parallel/partition.hpp"

namespace maestro::parallel {

struct Sequences {
    /// Describes the slice of this rank. The caller sets cos and sin.
    Sequences(Partition partition, AttentionMask mask, const Mesh& mesh);
    /// Makes the device_* tensors. Where the device shares the host's memory they refer to the vectors of
    /// this object, which therefore has to outlive their use. Also reserves memory for the tables of
    /// attention, which are made when the first layer attends; with `backward`, in both passes. Memory is
    /// planned with one micro-batch: another one of no more rows has up to `most_sequences` sequences.
    void copy_to_device(backend::Backend& backend, bool backward, std::int64_t most_sequences,
                        backend::Arena& arena);

    Partition partition;
    std::int64_t rows = 0;                ///< of the slice
    std::vector<std::int64_t> tp_rows;    ///< rows of each tp rank of the slice
    std::vector<std::int64_t> lane_rows;  ///< model::Batch::lane_rows
    Tensor cos, sin;                      ///< rotary tables, [rows, head_dim / 2]
    /// By sequence: the share of its targets' loss weights in the sum of the step. Empty: no targets.
    std::vector<double> loss_shares;
    /// f64[1]: here layers with experts add the loss that balances them. Absent: they add it nowhere.
    Tensor balance_loss;

    /// Which keys of the slice its queries attend to. Under all-to-all, where attention runs over whole
    /// sequences, it covers the queries and keys of all slices.
    ops::VarlenMask mask;
    /// Of all masks. A cache: it does not change what this object describes.
    mutable ops::AttentionTables tables;

    // Ring: the keys and values of cut sequences travel from slice to slice.
    std::vector<std::int32_t> ring_rows;  ///< slice rows whose keys and values this rank sends
    Tensor device_ring_rows;
    std::vector<std::int64_t> ring_row_counts;  ///< by slice: how many rows it sends
    std::vector<ops::VarlenMask> ring_masks;    ///< by slice: this slice's queries and the keys it sends
    bool has_ring_rows() const;                 ///< whether any slice sends rows

    // All-to-all: the rows of all slices are brought into packed order.
    std::vector<std::int64_t> slice_rows;   ///< rows of each slice
    std::vector<std::int32_t> packed_rows;  ///< the packed row of each row of slice 0, then of slice 1, ...
    Tensor device_packed_rows;
};

/// Returns the elements of `packed`, a list by packed row, at the rows of `ranges`, in their order.
/// offsets[s] is the packed row at which sequence s begins.
template <class T>
std::vector<T> pick(const std::vector<T>& packed, std::span<const RowRange> ranges,
                    std::span<const std::int32_t> offsets) {
    std::vector<T> picked;
    for (const RowRange& range : ranges) {
        const auto begin = packed.begin() + offsets[range.sequence] + range.first;
        picked.insert(picked.end(), begin, begin + range.count);
    }
    return picked;
}

}  // namespace maestro::parallel
