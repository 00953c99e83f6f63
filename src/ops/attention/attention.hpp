// Softmax attention over packed sequences of different lengths, without padding, with grouped queries (GQA).
// Blocks of queries attend to the keys of their sequence, as in FlashAttention-2 (Dao, 2023), so that the [T,
// T] matrix of scores never exists.
//
// Shape letters: Tq query rows, Tk key rows, S sequences, H query heads that share K KV heads, D channels of
// a head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::ops {

class AttentionTables;

/// Which keys each query of a packed micro-batch attends to, on the host. Sequence s has the query rows
/// [cu_seqlens_q[s], cu_seqlens_q[s + 1]) and the key rows [cu_seqlens_k[s], cu_seqlens_k[s + 1])
/// (FlashAttention's varlen interface). Its query t attends to the first kv_limit[t] of these keys; limits do
/// not decrease within a sequence.
struct VarlenMask {
    std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  ///< S + 1 numbers each, ascending from 0
    std::vector<std::int32_t> kv_limit;                    ///< by query
    /// Queries and keys are the same rows, and each query attends to the keys up to its position.
    bool causal = false;
};

/// Returns the mask of whole sequences whose rows begin at `offsets`, S + 1 numbers: every query attends to
/// all keys of its sequence.
VarlenMask full_mask(std::span<const std::int32_t> offsets);
/// The same, where a query attends to the keys up to its position.
VarlenMask causal_mask(std::span<const std::int32_t> offsets);

/// out[Tq, H D] and lse[Tq, H] from q[Tq, H D], k[Tk, K D] and the values, which are the last K D columns of
/// values[Tk, any]. Scores are scaled by 1/sqrt(D). `out` has q's type or its accumulation type; lse, the
/// logarithm of the softmax's denominator, has the accumulation type and is saved for backward. A query
/// without keys gets zeros and an lse of minus infinity. Throws Error(broken_invariant) for shapes that do
/// not fit the mask. What is computed from the mask is kept in `tables` for later calls, unless it is null.
void attention(backend::Backend& b, const Tensor& q, const Tensor& k, const Tensor& values,
               const VarlenMask& mask, const Tensor& out, const Tensor& lse, backend::Arena& scratch,
               AttentionTables* tables = nullptr);
/// Writes dq[Tq, H D], dk[Tk, K D] and the last K D columns of dvalues[Tk, any], all of q's type or all of
/// its accumulation type, from dout[Tq, H D]. `out` and `lse` may be those over more keys than `k` has: then
/// the gradients are those of the part of the attention that these keys contribute, and the parts add up
/// (ring attention).
void attention_backward(backend::Backend& b, const Tensor& dout, const Tensor& out, const Tensor& q,
                        const Tensor& k, const Tensor& values, const Tensor& lse, const VarlenMask& mask,
                        const Tensor& dq, const Tensor& dk, const Tensor& dvalues, backend::Arena& scratch,
                        AttentionTables* tables = nullptr);

/// Builds the plans of a device with fused attention for micro-batches of up to `sequences` sequences of
/// these lengths, in rows, and inputs and results of `type`. `shape` describes heads, mask and row widths;
/// its `sequences` and `max_seqlen` are ignored. Does nothing on other devices.
void prepare_attention(backend::Backend& b, DType type, const backend::AttentionClass& shape,
                       std::span<const std::int64_t> rows, std::int64_t sequences);

/// Joins the attention of the same queries over two disjoint sets of keys: out[T, H D] and lse[T, H] become
/// those over both sets. All tensors have the accumulation type, but `other_out` may be bf16.
void join_attention(backend::Backend& b, const Tensor& other_out, const Tensor& other_lse, const Tensor& out,
                    const Tensor& lse);

}  // namespace maestro::ops
