#include "ops/attention/gpu_attention.hpp"

#include <algorithm>
#include <set>

#include "kernels/attention.hpp"
#include "ops/attention/implementation.hpp"

namespace maestro::ops {

namespace {

constexpr std::int64_t kAlignment = 16;  ///< bytes to which the fused operation wants rows aligned

bool aligned(const Tensor& t) {
    const auto size = static_cast<std::int64_t>(size_of(t.dtype));
    return reinterpret_cast<std::uintptr_t>(t.data) % kAlignment == 0 && t.columns() * size % kAlignment == 0;
}

AttentionCase case_of(const backend::Backend& b, const AttentionTensors& t, std::int64_t max_seqlen) {
    AttentionCase c{.support = b.attention_support(),
                    .inputs = t.q.dtype,
                    .results = t.backward() ? t.dq.dtype : t.out.dtype,
                    .heads = t.lse.columns(),
                    .dim = t.q.columns() / t.lse.columns(),
                    .max_seqlen = max_seqlen,
                    .backward = t.backward(),
                    .gaps = !t.backward() || t.dvalues.columns() == t.dk.columns()};
    for (const Tensor* each : {&t.q, &t.k, &t.values, &t.out, &t.dout, &t.dq, &t.dk, &t.dvalues})
        c.aligned = c.aligned && (each->empty() || (aligned(*each) && each->dtype == DType::bf16));
    return c;
}

/// Memory is planned with one micro-batch, and another one of no more rows may consist of shorter sequences,
/// or need no joining of partial results. Returns the case in which the fused operation would be used for it,
/// so that the meta backend allocates for this implementation as well.
AttentionCase widest_case(AttentionCase c) {
    c.max_seqlen = std::min(c.max_seqlen, max_planned_seqlen(c));
    c.results = c.inputs;
    c.aligned = true;
    return c;
}

}  // namespace

GpuAttention::GpuAttention(backend::Backend& b, const AttentionTensors& t, const VarlenMask& mask,
                           std::int64_t max_seqlen, backend::Arena& scratch)
    : tensors_(t) {
    if (b.shares_memory()) return;
    AttentionCase c = case_of(b, t, max_seqlen);
    if (!b.computes()) c = widest_case(c);
    const AttentionImplementation implementation = attention_implementation(c, mask);
    if (implementation != AttentionImplementation::kernel) packed_.emplace(t, mask, implementation, c);
    if (packed_ && b.computes() && !packed_->prepare(*b.fused_attention())) packed_.reset();
    if (!packed_) {
        allocate_tiles(b, mask, scratch);
        return;
    }
    if (!b.computes()) {  // either implementation may run: the scratch memory is the larger of the two
        const backend::ArenaScope scope(scratch);
        allocate_tiles(b, mask, scratch);
    }
    packed_->allocate(b, scratch);
}

void prepare_attention(backend::Backend& b, DType type, const backend::AttentionClass& shape,
                       std::span<const std::int64_t> rows) {
    if (!b.fused_attention()) return;
    std::set<std::int64_t> planned;
    for (const std::int64_t each : rows)
        if (each > 0) planned.insert(planned_seqlen(each));
    for (const std::int64_t max_seqlen : planned) {
        const AttentionImplementation implementation = attention_implementation(
            {.support = b.attention_support(),
             .inputs = type,
             .results = type,
             .heads = shape.heads,
             .dim = shape.dim,
             .max_seqlen = max_seqlen,
             .backward = shape.backward,
             .aligned = shape.value_width * static_cast<std::int64_t>(size_of(type)) % kAlignment == 0},
            shape.causal);
        if (implementation != AttentionImplementation::kernel)
            b.fused_attention()->prepare(attention_class(shape, implementation, max_seqlen));
    }
}

void GpuAttention::allocate_tiles(backend::Backend& b, const VarlenMask& mask, backend::Arena& scratch) {
    const bool backward = tensors_.backward();
    tiles_ = attention_tiles(b, mask, tensors_.q.dtype, backward, scratch);
    if (backward)
        dout_dot_out_ = scratch.allocate(tensors_.lse.dtype, {tensors_.lse.dim(0), tensors_.lse.columns()});
}

void GpuAttention::run(backend::Backend& b, [[maybe_unused]] Stream stream) const {
    const AttentionTensors& t = tensors_;
    if constexpr (!backend::kCuda)
        MAESTRO_FAIL("attention on a GPU in a build without CUDA");
    else if (packed_)
        packed_->run(stream, *b.fused_attention());
    else if (t.backward())
        kernels::attention_backward(stream, t.dout, t.out, t.q, t.k, t.values, t.lse, tiles_.queries,
                                    tiles_.keys, tiles_.kv_limit, t.dq, t.dk, t.dvalues, dout_dot_out_);
    else
        kernels::attention(stream, t.q, t.k, t.values, tiles_.queries, tiles_.kv_limit, t.out, t.lse);
}

}  // namespace maestro::ops
