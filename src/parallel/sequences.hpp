// The sequences of a micro-batch as one cp rank sees them: which of their rows are in its slice, and which
// keys each of these rows attends to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "base/tensor.hpp"
#include "ops/attention/attention.hpp"
#include "parallel/mesh.hpp"
#include "parallel/partition.hpp"

namespace maestro::parallel {

struct Sequences {
    /// Of the slice of this rank. cos and sin are left to the caller.
    Sequences(Partition partition, AttentionMask mask, const Mesh& mesh);
    /// Copies the row numbers below to the device, where they are used. This object has to outlive their use.
    void copy_to_device(backend::Backend& backend, backend::Arena& arena);

    Partition partition;
    std::int64_t rows = 0;              ///< of the slice
    std::vector<std::int64_t> tp_rows;  ///< of each tp rank of the slice
    Tensor cos, sin;                    ///< rotations, [rows, head_dim / 2]

    /// Which keys of the slice its queries attend to. Under all-to-all, where attention runs over whole
    /// sequences, the queries and keys of all slices.
    ops::VarlenMask mask;

    // Ring: the keys of sequences that are cut travel from slice to slice.
    std::vector<std::int32_t> ring_rows;  ///< rows of this slice whose keys and values travel
    Tensor device_ring_rows;
    std::vector<std::int64_t> ring_row_counts;  ///< by slice: how many rows' keys and values it sends
    std::vector<ops::VarlenMask> ring_masks;    ///< by slice: this slice's queries against the keys it sends
    bool has_ring_rows() const;                 ///< of any slice

    // All-to-all: the rows of all slices are brought into packed order.
    std::vector<std::int64_t> slice_rows;   ///< rows of each slice
    std::vector<std::int32_t> packed_rows;  ///< packed row of each of their rows, one slice after another
    Tensor device_packed_rows;
};

/// From a list by packed row, the elements of `ranges`, in their order. `first[s]`: packed row at which
/// sequence s begins.
template <class T>
std::vector<T> pick(const std::vector<T>& all, std::span<const RowRange> ranges,
                    std::span<const std::int32_t> first) {
    std::vector<T> picked;
    for (const RowRange& range : ranges) {
        const auto begin = all.begin() + first[range.sequence] + range.first;
        picked.insert(picked.end(), begin, begin + range.count);
    }
    return picked;
}

}  // namespace maestro::parallel
