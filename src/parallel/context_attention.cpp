#include "parallel/context_attention.hpp"

#include <algorithm>
#include <vector>

#include "base/shard.hpp"
#include "ops/attention/attention.hpp"
#include "ops/dispatch.hpp"

namespace maestro::parallel {

ContextAttention::ContextAttention(backend::Backend& backend, const Mesh& mesh, DType type,
                                   std::int64_t head_dim)
    : backend_(backend),
      mesh_(&mesh),
      type_(type),
      statistics_(ops::accumulate_type(type)),
      head_dim_(head_dim) {}

AttentionActivations ContextAttention::allocate(const Sequences& sequences, std::int64_t heads,
                                                std::int64_t kv_heads, backend::Arena& saved,
                                                backend::Arena& queries) const {
    if (uses_ulysses()) return ulysses_allocate(sequences, heads, kv_heads, saved);
    AttentionActivations a;
    const std::int64_t rows = sequences.rows;
    a.q = queries.allocate(type_, {rows, heads * head_dim_});
    a.k = queries.allocate(type_, {rows, kv_heads * head_dim_});
    a.lse = saved.allocate(statistics_, {rows, heads});
    return a;
}

void ContextAttention::prepare(std::span<const std::int64_t> rows, std::int64_t sequences, AttentionMask mask,
                               std::int64_t heads, std::int64_t kv_heads, bool backward) const {
    const int cp = mesh_->degrees().cp;
    const bool causal = mask == AttentionMask::causal, ring = cp > 1 && !uses_ulysses();
    backend::AttentionClass shape{.backward = backward, .causal = causal, .dim = head_dim_};
    if (uses_ulysses()) {
        shape.heads = heads / cp;
        shape.kv_heads = std::max<std::int64_t>(kv_heads / cp, 1);
        shape.value_width = shape.kv_heads * head_dim_;  // received values have a separate tensor
    } else {
        shape.heads = heads;
        shape.kv_heads = kv_heads;
        shape.value_width = (heads + 2 * kv_heads) * head_dim_;
    }
    shape.gradient_width = backward ? shape.value_width : 0;
    // A causal ring cuts all sequences, a full one some.
    if (!ring || !causal) ops::prepare_attention(backend_, type_, shape, rows, sequences);
    if (!ring) return;
    std::vector<std::int64_t> parts;  // of a slice: one part of the sequence, or an early and a late one
    for (const std::int64_t each : rows)
        for (int slice = 0; slice < cp; ++slice)
            parts.push_back(causal ? part_of(each, slice, 2 * cp).size() +
                                         part_of(each, 2 * cp - 1 - slice, 2 * cp).size()
                                   : part_of(each, slice, cp).size());
    const std::int64_t width = kv_heads * head_dim_;
    shape.gradient_width = backward ? width : 0;
    ops::prepare_attention(backend_, type_, shape, parts, sequences);  // with the keys of the slice
    shape.causal = false;
    shape.value_width = width;
    ops::prepare_attention(backend_, type_, shape, parts, sequences);  // with those of others
}

void ContextAttention::forward(AttentionActivations& a, const Tensor& q, const Tensor& k, const Tensor& qkv,
                               const ContextMasks& masks, const Tensor& attn_out,
                               backend::Arena& scratch) const {
    if (uses_ulysses()) return ulysses_forward(a, q, k, qkv, masks, attn_out, scratch);
    // The values stay where the fused GEMM wrote them: they are already part of the saved activations.
    a.values = qkv;
    ring_forward(a, masks, attn_out, scratch);
}

void ContextAttention::backward(const AttentionActivations& a, const Tensor& d_attn_out,
                                const Tensor& attn_out, const ContextMasks& masks, const Tensor& dq,
                                const Tensor& dk, const Tensor& dqkv, backend::Arena& scratch) const {
    if (uses_ulysses()) return ulysses_backward(a, d_attn_out, masks, dq, dk, dqkv, scratch);
    ring_backward(a, d_attn_out, attn_out, masks, dq, dk, dqkv, scratch);
}

}  // namespace maestro::parallel
