// Softmax attention over packed sequences of different lengths, without padding; grouped queries (H query
// heads share K key heads). Blocks of queries against the keys that they may see, as in FlashAttention-2
// (Dao, 2023): the [T, T] matrix never exists.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::ops {

/// What every query sees (host). Sequence s has the queries [queries[s], queries[s + 1]) and the keys
/// [keys[s], keys[s + 1]); its query t sees the first seen[t] of these keys, and what later ones see does not
/// shrink.
struct Visible {
    std::vector<std::int32_t> queries, keys;  ///< S + 1, ascending from 0
    std::vector<std::int32_t> seen;           ///< by query
    bool diagonal = false;  ///< queries and keys are the same rows, each sees those before it: counts half
};

/// Whole sequences, from `offsets` of S + 1 rows.
Visible see_all(std::span<const std::int32_t> offsets);
Visible see_before(std::span<const std::int32_t> offsets);  ///< causal

/// q[Tq,H*D], k[Tk,K*D], values in the last K*D columns of `values`[Tk, any]. out[Tq,H*D] of q's type or its
/// accumulation type; lse[Tq,H] (accumulation type) is kept for backward. A query that sees nothing gets
/// zeros and a lse of minus infinity. Scale 1/sqrt(D).
void attention(backend::Backend& b, const Tensor& q, const Tensor& k, const Tensor& values,
               const Visible& visible, const Tensor& out, const Tensor& lse, backend::Arena& scratch);
/// Writes dq, dk and the last K*D columns of dvalues, all of q's type or all of its accumulation type. `out`
/// and `lse` may be those over more keys than these: then the sum over the parts is the gradient.
void attention_backward(backend::Backend& b, const Tensor& dout, const Tensor& out, const Tensor& q,
                        const Tensor& k, const Tensor& values, const Tensor& lse, const Visible& visible,
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
