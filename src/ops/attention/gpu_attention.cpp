#include "ops/attention/gpu_attention.hpp"

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

}  // namespace

AttentionShape attention_shape(const AttentionTensors& t) {
    AttentionShape shape{.inputs = t.q.dtype,
                         .results = t.backward() ? t.dq.dtype : t.out.dtype,
                         .backward = t.backward(),
                         .aligned = true,
                         .gaps = !t.backward() || t.dvalues.columns() == t.dk.columns(),
                         .query_rows = t.q.dim(0),
                         .key_rows = t.k.dim(0),
                         .heads = t.lse.columns(),
                         .query_width = t.q.columns(),
                         .key_width = t.k.columns(),
                         .value_width = t.values.columns(),
                         .gradient_width = t.backward() ? t.dvalues.columns() : 0};
    for (const Tensor* each : {&t.q, &t.k, &t.values, &t.out, &t.dout, &t.dq, &t.dk, &t.dvalues})
        shape.aligned = shape.aligned && (each->empty() || (each->dtype == DType::bf16 && aligned(*each)));
    return shape;
}

GpuAttention::GpuAttention(backend::Backend& b, const AttentionTensors& t, const MaskTables& tables,
                           backend::Arena& scratch)
    : tensors_(t), tables_(tables) {
    if (b.shares_memory()) return;
    const auto allocate_for_kernels = [&] {
        if (t.backward()) dout_dot_out_ = scratch.allocate(t.lse.dtype, {t.lse.dim(0), t.lse.columns()});
    };
    if (!tables.packed) {
        allocate_for_kernels();
        return;
    }
    if (!b.computes()) {  // either implementation may run: the scratch memory is the larger of the two
        const backend::ArenaScope scope(scratch);
        allocate_for_kernels();
    }
    packed_ = tables.packed->allocate(t, scratch);
}

void prepare_attention(backend::Backend& b, DType type, const backend::AttentionClass& shape,
                       std::span<const std::int64_t> rows, std::int64_t sequences) {
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
        if (implementation == AttentionImplementation::kernel) continue;
        for (const PlanSize& size : plan_sizes(max_seqlen, shape.heads, sequences, sequences * max_seqlen))
            b.fused_attention()->prepare(attention_class(shape, implementation, size));
    }
}

void GpuAttention::run(backend::Backend& b, [[maybe_unused]] Stream stream) const {
    const AttentionTensors& t = tensors_;
    const AttentionTiles& tiles = tables_.tiles;
    if constexpr (!backend::kCuda)
        MAESTRO_FAIL("attention on a GPU in a build without CUDA");
    else if (tables_.packed)
        tables_.packed->run(b, stream, t, packed_);
    else if (t.backward())
        kernels::attention_backward(stream, t.dout, t.out, t.q, t.k, t.values, t.lse, tiles.queries,
                                    tiles.keys, tiles.kv_limit, t.dq, t.dk, t.dvalues, dout_dot_out_);
    else
        kernels::attention(stream, t.q, t.k, t.values, tiles.queries, tiles.kv_limit, t.out, t.lse);
}

}  // namespace maestro::ops
