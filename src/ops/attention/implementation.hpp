// The choice of the implementation of attention on a GPU: the library's fused operation where it accepts the
// tensors, and otherwise the kernels of this program, which accept everything. Pure functions.
#pragma once

#include <cstdint>

#include "backend/fused_attention.hpp"
#include "base/dtype.hpp"
#include "ops/attention/attention.hpp"

namespace maestro::ops {

enum class AttentionImplementation {
    kernel,         ///< kernels/attention.hpp
    packed_causal,  ///< fused operation on packed sequences with a causal mask
    packed_full,    ///< fused operation on packed sequences; every query attends to all keys of its sequence
    padded_causal,  ///< fused operation on copies in which each sequence is padded to the longest
    padded_full,
};
inline bool is_causal(AttentionImplementation implementation) {
    return implementation == AttentionImplementation::packed_causal ||
           implementation == AttentionImplementation::padded_causal;
}
inline bool is_padded(AttentionImplementation implementation) {
    return implementation == AttentionImplementation::padded_causal ||
           implementation == AttentionImplementation::padded_full;
}

/// What the choice depends on, besides the mask.
struct AttentionCase {
    backend::AttentionSupport support = {};  ///< Backend::attention_support()
    DType inputs = DType::f32, results = DType::f32;
    std::int64_t heads = 0, dim = 0;
    std::int64_t max_seqlen = 0;  ///< most queries or keys of a sequence
    bool backward = false;
    bool aligned = true;  ///< whether all rows begin at multiples of 16 bytes
    bool gaps = true;     ///< whether no result shares its rows with other data
};

/// Returns the sequence length for which the plan of a sequence of `rows` rows is built: a power of two, at
/// least 128.
std::int64_t planned_seqlen(std::int64_t rows);
/// Returns the longest sequence that the fused operation is used for.
std::int64_t max_planned_seqlen(const AttentionCase& c);

/// Returns the implementation for a causal mask, or for one where every query attends to all keys of its
/// sequence.
AttentionImplementation attention_implementation(const AttentionCase& c, bool causal);
/// Returns the implementation for any mask. The mask is inspected only if the rest of the case admits the
/// fused operation.
/// The full forms also take masks in which the last queries of each sequence attend to the same first keys of
/// it, and the queries before them to none, as between the slices of a ring. `c.gaps` says whether results
/// may be cleared for the other rows.
AttentionImplementation attention_implementation(const AttentionCase& c, const VarlenMask& mask);

}  // namespace maestro::ops
