// Who attends on a GPU: the library's fused operation where it has one for such tensors, or kernels of our
// own, which take everything. Pure.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "ops/attention/attention.hpp"

namespace maestro::ops {

enum class AttentionImplementation {
    kernel,         ///< kernels/attention.hpp
    packed_causal,  ///< the fused operation, every query sees the keys up to its own
    packed_full,    ///< the fused operation, every query sees all keys of its sequence
    padded_causal,  ///< the same on copies, each sequence padded to the max_seqlen
    padded_full,
};
inline bool is_causal(AttentionImplementation form) {
    return form == AttentionImplementation::packed_causal || form == AttentionImplementation::padded_causal;
}
inline bool is_padded(AttentionImplementation form) {
    return form == AttentionImplementation::padded_causal || form == AttentionImplementation::padded_full;
}

/// What decides it.
struct AttentionCase {
    int architecture = 0;  ///< of the GPU whose library attends, as 90; 0: there is none
    DType inputs = DType::f32, results = DType::f32;
    std::int64_t heads = 0, dim = 0;
    std::int64_t max_seqlen = 0;  ///< most queries or keys of a sequence
    bool backward = false;
    bool aligned = true;  ///< do all rows begin at multiples of 16 bytes?
};

/// The rows that a plan for a sequence of `rows` is built for: a power of two, from 128.
std::int64_t planned_seqlen(std::int64_t rows);
/// Most of them that the fused operation takes.
std::int64_t max_planned_seqlen(const AttentionCase& c);

/// Where every query sees the keys up to its own (causal), or else all of its sequence.
AttentionImplementation attention_implementation(const AttentionCase& c, bool causal);
/// `mask` is looked at last, and only as far as it takes.
AttentionImplementation attention_implementation(const AttentionCase& c, const VarlenMask& mask);

}  // namespace maestro::ops
