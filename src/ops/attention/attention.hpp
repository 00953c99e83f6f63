// Softmax attention over packed sequences of different lengths, without padding; grouped queries (H query
// heads share K key heads). Blocks of queries against the keys that they may see, as in FlashAttention-2
// (Dao, 2023): the [T, T] matrix never exists.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::ops {

/// Which keys each query of a packed micro-batch attends to (host). Sequence s has the queries
/// [cu_seqlens_q[s], cu_seqlens_q[s + 1]) and the keys [cu_seqlens_k[s], cu_seqlens_k[s + 1]). Its query t
/// attends to the first kv_limit[t] of these keys; limits do not fall within a sequence.
struct VarlenMask {
    std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  ///< S + 1 numbers each, ascending from 0
    std::vector<std::int32_t> kv_limit;                    ///< by query
    bool causal = false;  ///< queries and keys are the same rows, and each attends to those up to its own
};

/// Of whole sequences that begin at `offsets`, S + 1 rows: every query attends to all keys of its sequence,
/// or to those up to its own.
VarlenMask full_mask(std::span<const std::int32_t> offsets);
VarlenMask causal_mask(std::span<const std::int32_t> offsets);

/// q[Tq,H*D], k[Tk,K*D], values in the last K*D columns of `values`[Tk, any]. out[Tq,H*D] of q's type or its
/// accumulation type; lse[Tq,H] (accumulation type) is kept for backward. A query without keys gets zeros and
/// a lse of minus infinity. Scale 1/sqrt(D).
void attention(backend::Backend& b, const Tensor& q, const Tensor& k, const Tensor& values,
               const VarlenMask& mask, const Tensor& out, const Tensor& lse, backend::Arena& scratch);
/// Writes dq, dk and the last K*D columns of dvalues, all of q's type or all of its accumulation type. `out`
/// and `lse` may be those over more keys than these: then the sum over the parts is the gradient.
void attention_backward(backend::Backend& b, const Tensor& dout, const Tensor& out, const Tensor& q,
                        const Tensor& k, const Tensor& values, const Tensor& lse, const VarlenMask& mask,
                        const Tensor& dq, const Tensor& dk, const Tensor& dvalues, backend::Arena& scratch);

/// Builds the plans that a device of its own kind of attention wants for sequences of so many rows: of such
/// heads, masks and rows, inputs and results of `type`. `shape` has no sequences and no longest.
void prepare_attention(backend::Backend& b, DType type, const backend::AttentionClass& shape,
                       std::span<const std::int64_t> rows);

/// out[T,H*D], lse[T,H]: attention over some keys; joined, in place, by that over others (all of the
/// accumulation type).
void join_attention(backend::Backend& b, const Tensor& other_out, const Tensor& other_lse, const Tensor& out,
                    const Tensor& lse);

}  // namespace maestro::ops
