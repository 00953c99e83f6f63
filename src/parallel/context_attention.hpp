// Attention of a layer over sequences that the cp ranks of a replica share. Two algorithms:
//   ring         Keys and values travel from rank to rank while every rank keeps its queries, and the partial
//                results are joined (Liu et al., "Ring Attention", ICLR 2024; zigzag order as in Llama 3).
//   all-to-all   Every rank exchanges its rows of all heads for all rows of some heads, and attends to whole
//                sequences (Jacobs et al., "DeepSpeed-Ulysses", 2023).
//
// Shape letters: T rows of this rank's slice, A rows of all slices; H query heads and K KV heads of this tp
// rank, of D channels each.
#pragma once

#include <span>

#include "backend/arena.hpp"
#include "parallel/context_masks.hpp"

namespace maestro::parallel {

/// What the backward pass of attention reads. With a ring: this slice's rows, all heads. With all-to-all: all
/// rows, H / cp query heads and K / cp KV heads (at least one).
struct AttentionActivations {
    Tensor q, k;      ///< [rows, heads D], after norm and rotation
    Tensor values;    ///< the values are the last columns of its rows
    Tensor out, lse;  ///< [rows, heads D], [rows, heads]; out is absent with a ring, where the layer keeps it
};

class ContextAttention {
public:
    /// Backend and mesh outlive the object. `type` is that of queries, keys and values.
    ContextAttention(backend::Backend& backend, const Mesh& mesh, DType type, std::int64_t head_dim);

    /// Whether heads are exchanged for rows. Then forward() expects q and k in memory of the caller, and
    /// saves those of other rows and heads in the activations.
    bool uses_ulysses() const {
        return mesh_->degrees().cp > 1 && mesh_->context_kind() == ContextKind::all_to_all;
    }
    /// Builds the device's plans for micro-batches of up to `sequences` sequences of these lengths, in rows,
    /// and for their parts in a ring.
    void prepare(std::span<const std::int64_t> rows, std::int64_t sequences, AttentionMask mask,
                 std::int64_t heads, std::int64_t kv_heads, bool backward) const;
    /// Allocates the activations. Without all-to-all the caller writes its queries and keys to a.q and a.k,
    /// which are allocated in `queries` instead of `saved`: they may be computed again for backward.
    AttentionActivations allocate(const Sequences& sequences, std::int64_t heads, std::int64_t kv_heads,
                                  backend::Arena& saved, backend::Arena& queries) const;
    /// attn_out[T, H D] from q[T, H D], k[T, K D] and the values in the last K D columns of
    /// qkv[T, (H + 2 K) D]. Collective over cp.
    void forward(AttentionActivations& a, const Tensor& q, const Tensor& k, const Tensor& qkv,
                 const ContextMasks& masks, const Tensor& attn_out, backend::Arena& scratch) const;
    /// Writes dq[T, H D], dk[T, K D] and the last K D columns of dqkv[T, (H + 2 K) D], from d_attn_out[T, H
    /// D] and forward()'s attn_out. Collective over cp.
    void backward(const AttentionActivations& a, const Tensor& d_attn_out, const Tensor& attn_out,
                  const ContextMasks& masks, const Tensor& dq, const Tensor& dk, const Tensor& dqkv,
                  backend::Arena& scratch) const;

private:
    // ring_attention.cpp
    void ring_forward(const AttentionActivations& a, const ContextMasks& masks, const Tensor& attn_out,
                      backend::Arena& scratch) const;
    void ring_backward(const AttentionActivations& a, const Tensor& d_attn_out, const Tensor& attn_out,
                       const ContextMasks& masks, const Tensor& dq, const Tensor& dk, const Tensor& dqkv,
                       backend::Arena& scratch) const;
    /// Copies the keys and values of this slice's ring rows to packed[2 n, K D]: n rows of keys, then n of
    /// values.
    void pack_kv(const AttentionActivations& a, const ContextMasks& masks, const Tensor& packed) const;
    /// Whether a micro-batch without cut sequences allocates a ring's scratch memory all the same. On the
    /// meta backend it does: memory is planned for one micro-batch, and another one of no more rows may be
    /// cut.
    bool reserves_ring_scratch() const { return !backend_.computes() && mesh_->degrees().cp > 1; }
    /// The type of partial results in a ring. A fused operation writes bf16.
    DType partial_type() const {
        return backend_.attention_support().architecture != 0 ? type_ : statistics_;
    }

    // ulysses_attention.cpp
    AttentionActivations ulysses_allocate(const Sequences& sequences, std::int64_t heads,
                                          std::int64_t kv_heads, backend::Arena& saved) const;
    void ulysses_forward(AttentionActivations& a, const Tensor& q, const Tensor& k, const Tensor& qkv,
                         const ContextMasks& masks, const Tensor& attn_out, backend::Arena& scratch) const;
    void ulysses_backward(const AttentionActivations& a, const Tensor& d_attn_out, const ContextMasks& masks,
                          const Tensor& dq, const Tensor& dk, const Tensor& dqkv,
                          backend::Arena& scratch) const;

    backend::Backend& backend_;
    const Mesh* mesh_;
    DType type_, statistics_;
    std::int64_t head_dim_;
};

}  // namespace maestro::parallel
