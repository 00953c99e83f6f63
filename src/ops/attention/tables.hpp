// What attention computes from a mask on the host, and copies to the device. It is the same in all layers of
// a micro-batch and is kept for them: it takes time that grows with the number of tokens.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "ops/attention/packed_attention.hpp"
#include "ops/attention/tiles.hpp"

namespace maestro::ops {

/// The tables of one mask, for calls of one shape.
struct MaskTables {
    const VarlenMask* mask;
    AttentionShape shape;
    AttentionSizes sizes;
    std::optional<PackedAttention> packed;  ///< absent where the program's kernels run, and on CPUs
    AttentionTiles tiles;                   ///< absent where `packed` runs, and on CPUs
};

/// Returns an i32 tensor of the device with these words.
using Upload = std::function<Tensor(const std::vector<std::int32_t>& words)>;
/// Computes the tables of a mask. Throws Error(broken_invariant) for shapes that do not fit it. On the meta
/// backend they are those of any micro-batch of no more rows and of up to `sequences` sequences.
MaskTables make_mask_tables(backend::Backend& b, const AttentionTensors& t, const VarlenMask& mask,
                            std::int64_t sequences, const Upload& upload);

/// Upper bounds of a mask.
struct MaskBounds {
    std::int64_t queries = 0, keys = 0, sequences = 0;
};
/// Returns the most words that the tables of a mask can have, in one pass.
std::int64_t most_table_words(const MaskBounds& mask);

/// Tables that are made at their first use and kept until the object is destroyed. The masks must outlive it,
/// unchanged. Not thread-safe.
class AttentionTables {
public:
    /// Allocates memory of the device for `masks` masks within `bounds`, in the forward pass and with
    /// `backward` also in the backward pass. Must be called before the first use, and again to discard all
    /// tables. Allocates nothing for a device that shares the host's memory.
    void reserve(backend::Backend& b, std::int64_t masks, const MaskBounds& bounds, bool backward,
                 backend::Arena& arena);
    const MaskTables& of(backend::Backend& b, const AttentionTensors& t, const VarlenMask& mask);
    std::size_t size() const { return tables_.size(); }  ///< how many were made

private:
    std::list<MaskTables> tables_;
    Tensor memory_;  ///< i32, of which the first used_ words are occupied
    std::int64_t used_ = 0;
    std::int64_t sequences_ = 0;  ///< most of a mask
};

}  // namespace maestro::ops
