// Attention of a layer over sequences that the cp ranks of a replica share out. H query heads, K key heads of
// this rank, D channels each; T rows of its slice.
#pragma once

#include <span>

#include "backend/arena.hpp"
#include "parallel/sequences.hpp"

namespace maestro::parallel {

/// What backward reads. With all-to-all: of whole sequences, some of the heads.
struct AttentionActivations {
    Tensor q, k;      ///< after norm and rotation
    Tensor values;    ///< in its last columns
    Tensor out, lse;  ///< out: empty where it is the layer's own
};

class ContextAttention {
public:
    /// `peers` must outlive it.
    ContextAttention(backend::Backend& backend, const Peers& peers, DType type, std::int64_t head_dim);

    /// Does attention keep queries and keys in another form than it is given?
    bool gathers() const { return peers_->degrees.cp > 1 && peers_->kind == ContextKind::all_to_all; }
    /// Builds the device's plans for sequences of so many rows. Those of a ring are not all known, and what
    /// is joined needs none.
    void prepare(std::span<const std::int64_t> rows, Attention attention, std::int64_t heads,
                 std::int64_t key_heads, bool backward) const;
    /// Takes the memory for T rows; where it gathers, q and k are its own, and forward wants others.
    AttentionActivations allocate(const Sequences& sequences, std::int64_t heads, std::int64_t key_heads,
                                  backend::Arena& saved) const;
    /// q[T,H*D], k[T,K*D], values in the last columns of qkv[T,(H+2K)*D] -> mixed[T,H*D]. Collective over
    /// peers.context.
    void forward(AttentionActivations& a, const Tensor& q, const Tensor& k, const Tensor& qkv,
                 const Sequences& sequences, const Tensor& mixed, backend::Arena& scratch) const;
    /// Writes dq, dk and the value columns of dqkv. Collective over peers.context.
    void backward(const AttentionActivations& a, const Tensor& d_mixed, const Tensor& mixed,
                  const Sequences& sequences, const Tensor& dq, const Tensor& dk, const Tensor& dqkv,
                  backend::Arena& scratch) const;

private:
    /// Where nothing is computed room is taken for a ring, whether keys go round or not: memory is planned by
    /// one micro-batch, and another of no more rows may be dealt otherwise.
    bool plans_ring() const { return !backend_.computes() && peers_->degrees.cp > 1; }
    void ring_forward(const AttentionActivations& a, const Sequences& sequences, const Tensor& mixed,
                      backend::Arena& scratch) const;
    void ring_backward(const AttentionActivations& a, const Tensor& d_mixed, const Tensor& mixed,
                       const Sequences& sequences, const Tensor& dq, const Tensor& dk, const Tensor& dqkv,
                       backend::Arena& scratch) const;
    /// Keys and values of the rows that go round, [2 n, K*D]: keys, then values.
    void pack_keys(const AttentionActivations& a, const Sequences& sequences, const Tensor& packed) const;

    backend::Backend& backend_;
    const Peers* peers_;
    DType type_, statistics_;
    std::int64_t dim_;
};

}  // namespace maestro::parallel
