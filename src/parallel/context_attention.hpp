// Attention of a layer over sequences that the cp ranks of a replica share, by a ring or by all-to-all. H
// query heads and K key heads of this rank, of D channels each; T rows of its slice.
#pragma once

#include <span>

#include "backend/arena.hpp"
#include "parallel/sequences.hpp"

namespace maestro::parallel {

/// What backward reads. Under all-to-all: whole sequences, of some of the heads.
struct AttentionActivations {
    Tensor q, k;      ///< after norm and rotation
    Tensor values;    ///< in its last columns
    Tensor out, lse;  ///< out: absent where it is the layer's own
};

class ContextAttention {
public:
    /// `mesh` must outlive it.
    ContextAttention(backend::Backend& backend, const Mesh& mesh, DType type, std::int64_t head_dim);

    /// Whether heads are exchanged for rows (DeepSpeed-Ulysses). Then forward() takes queries and keys from
    /// elsewhere than where it keeps them.
    bool uses_ulysses() const {
        return mesh_->degrees().cp > 1 && mesh_->context_kind() == ContextKind::all_to_all;
    }
    /// Builds the device's plans for sequences of these lengths. Those of a ring are not all known before,
    /// and partial results that are joined need none.
    void prepare(std::span<const std::int64_t> rows, AttentionMask mask, std::int64_t heads,
                 std::int64_t kv_heads, bool backward) const;
    /// Takes memory for what is kept. Without all-to-all, a.q and a.k are where forward() expects its queries
    /// and keys.
    AttentionActivations allocate(const Sequences& sequences, std::int64_t heads, std::int64_t kv_heads,
                                  backend::Arena& saved) const;
    /// q[T,H*D], k[T,K*D], values in the last columns of qkv[T,(H+2K)*D] -> attn_out[T,H*D]. Collective over
    /// cp.
    void forward(AttentionActivations& a, const Tensor& q, const Tensor& k, const Tensor& qkv,
                 const Sequences& sequences, const Tensor& attn_out, backend::Arena& scratch) const;
    /// Writes dq, dk and the value columns of dqkv. Collective over cp.
    void backward(const AttentionActivations& a, const Tensor& d_attn_out, const Tensor& attn_out,
                  const Sequences& sequences, const Tensor& dq, const Tensor& dk, const Tensor& dqkv,
                  backend::Arena& scratch) const;

private:
    /// On the meta backend memory is taken for a ring whether keys travel or not: it is planned for one
    /// micro-batch, and another of no more rows may have sequences that are cut.
    bool counts_ring() const { return !backend_.computes() && mesh_->degrees().cp > 1; }
    void ring_forward(const AttentionActivations& a, const Sequences& sequences, const Tensor& attn_out,
                      backend::Arena& scratch) const;
    void ring_backward(const AttentionActivations& a, const Tensor& d_attn_out, const Tensor& attn_out,
                       const Sequences& sequences, const Tensor& dq, const Tensor& dk, const Tensor& dqkv,
                       backend::Arena& scratch) const;
    /// Copies the keys and values of the rows that travel to packed[2 n, K*D]: keys, then values.
    void pack_keys(const AttentionActivations& a, const Sequences& sequences, const Tensor& packed) const;

    backend::Backend& backend_;
    const Mesh* mesh_;
    DType type_, statistics_;
    std::int64_t dim_;
};

}  // namespace maestro::parallel
