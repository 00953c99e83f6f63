// Which keys the queries of a rank's slice attend to, and which rows the cp ranks exchange for that
// (context_attention.hpp). Made once for a micro-batch and read by all layers whose attention is alike.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/arena.hpp"
#include "base/tensor.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/tables.hpp"
#include "parallel/sequences.hpp"

namespace maestro::parallel {

struct ContextMasks {
    ContextMasks(const Sequences& sequences, const Mesh& mesh);
    /// Makes the device_* tensors. Where the device shares the host's memory they refer to the vectors of
    /// this object, which therefore has to outlive their use. Also reserves memory for the tables of
    /// attention, which are made when the first layer attends; with `backward`, in both passes. From then on
    /// the object must not be moved. `most_sequences`: Sequences::most_sequences.
    void copy_to_device(backend::Backend& backend, bool backward, std::int64_t most_sequences,
                        backend::Arena& arena);

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

}  // namespace maestro::parallel
