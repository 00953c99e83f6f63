#include "model/attention_block.hpp"

#include <algorithm>
#include <vector>

#include "ops/dispatch.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

namespace {

Range shifted(const Range& range, std::int64_t by) {
    return {range.begin + by, range.end + by};
}

}  // namespace

AttentionBlock::AttentionBlock(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                               const parallel::Mesh& mesh, parallel::ParameterStore& store,
                               const std::string& prefix)
    : backend_(backend),
      spec_(spec),
      type_(role.compute),
      heads_(spec.heads / mesh.degrees().tp),
      kv_heads_(std::max(spec.kv_heads / mesh.degrees().tp, 1)),
      sequence_parallel_(backend, mesh.tp()),
      attention_(backend, mesh, role.compute, spec.head_dim),
      weights_(declare(store, role, mesh, prefix)),
      qkv_(backend, sequence_parallel_, *weights_.qkv),
      output_(backend, sequence_parallel_, *weights_.output) {}

/// Declared in the order in which forward uses them. The order determines where they lie in the flat arrays,
/// and with that the shards of the optimizer.
AttentionBlock::Weights AttentionBlock::declare(parallel::ParameterStore& store, const Role& role,
                                                const parallel::Mesh& mesh, const std::string& prefix) const {
    const std::int64_t dim = spec_.head_dim, width = spec_.width;
    const std::int64_t q_columns = spec_.heads * dim, kv_columns = spec_.kv_heads * dim;
    const Range part = mesh.tp_part(spec_.heads), heads{part.begin * dim, part.end * dim};
    // With more tp ranks than KV heads, every rank holds one KV head and consecutive ranks hold copies of the
    // same one. Each copy meets the queries of one rank alone, so its gradient is partial: Axis::kv makes
    // the optimizer sum the copies.
    const std::int64_t first_kv_row = std::int64_t{mesh.tp_rank()} * spec_.kv_heads / mesh.degrees().tp * dim;
    const Range kv_rows{first_kv_row, first_kv_row + kv_heads_ * dim};
    const auto kv_part = [&](std::int64_t first_row) {
        return parallel::ParameterPart{shifted(kv_rows, first_row), parallel::Axis::kv};
    };
    // Norms are whole on every tp rank, and each rank's gradient is partial: it has normalized its local rows
    // only, or (q_norm, k_norm) its heads only.
    const auto norm = [&](const char* name, std::int64_t size) {
        return &store.declare(prefix + name, {size}, parallel::Init::ones, role.trained);
    };
    return {
        .norm = norm("attention.norm.weight", width),
        // One GEMM computes queries, keys and values: the input is read once, and a wide GEMM runs closer to
        // the peak rate than three narrow ones.
        .qkv = &store.declare(prefix + "attention.qkv.weight", {q_columns + 2 * kv_columns, width},
                              parallel::Init::normal, role.trained,
                              {{heads}, kv_part(q_columns), kv_part(q_columns + kv_columns)}, {0, width}),
        .q_norm = norm("attention.q_norm.weight", dim),
        .k_norm = norm("attention.k_norm.weight", dim),
        .output = &store.declare(prefix + "attention.output.weight", {width, q_columns},
                                 parallel::Init::residual, role.trained, {{{0, width}}}, heads),
    };
}

void AttentionBlock::prepare(std::span<const std::int64_t> rows, std::int64_t sequences,
                             parallel::AttentionMask mask, bool backward) const {
    attention_.prepare(rows, sequences, mask, heads_, kv_heads_, false);
    if (backward) attention_.prepare(rows, sequences, mask, heads_, kv_heads_, true);
}

AttentionBlockActivations AttentionBlock::allocate(const Tensor& input, const parallel::Sequences& sequences,
                                                   backend::Arena& saved, backend::Arena& passing) const {
    const std::int64_t local = input.dim(0), rows = sequences.rows, dim = spec_.head_dim;
    const DType statistics = ops::accumulate_type(type_);
    AttentionBlockActivations a;
    a.input = input;
    a.normed = passing.allocate(type_, {local, spec_.width});
    a.rstd = saved.allocate(statistics, {local});
    a.qkv = saved.allocate(type_, {rows, (heads_ + 2 * kv_heads_) * dim});
    a.head_rstd = saved.allocate(statistics, {rows, heads_ + kv_heads_});
    a.attention = attention_.allocate(sequences, heads_, kv_heads_, saved, passing);
    a.attn_out = saved.allocate(type_, {rows, heads_ * dim});
    return a;
}

void AttentionBlock::forward(AttentionBlockActivations& a, const Tensor& output,
                             const parallel::Sequences& sequences, backend::Arena& scratch) const {
    const std::int64_t rows = sequences.rows, dim = spec_.head_dim;
    ops::rms_norm(backend_, a.input, weights_.norm->weight, a.normed, a.rstd, spec_.norm_eps);
    qkv_.forward(a.normed, a.qkv, sequences.tp_rows, scratch);
    {
        const backend::ArenaScope scope(scratch);
        // Under Ulysses attention saves queries and keys of other rows and heads than those computed here, so
        // these are temporary. Otherwise they are written straight to where attention saves them.
        const bool exchanged = attention_.uses_ulysses();
        const Tensor q = exchanged ? scratch.allocate(type_, {rows, heads_ * dim}) : a.attention.q,
                     k = exchanged ? scratch.allocate(type_, {rows, kv_heads_ * dim}) : a.attention.k;
        ops::head_norm_rotary(backend_, a.qkv, weights_.q_norm->weight, weights_.k_norm->weight,
                              sequences.cos, sequences.sin, q, k, a.head_rstd, spec_.norm_eps);
        attention_.forward(a.attention, q, k, a.qkv, sequences, a.attn_out, scratch);
    }
    output_.forward_add(a.attn_out, a.input, output, sequences.tp_rows, scratch);
}

void AttentionBlock::discard_cheap(AttentionBlockActivations& a) const {
    a.normed = {};
    if (!attention_.uses_ulysses()) a.attention.q = a.attention.k = {};
}

parallel::AttentionActivations AttentionBlock::restored_attention(const AttentionBlockActivations& a,
                                                                  const parallel::Sequences& sequences,
                                                                  backend::Arena& scratch) const {
    parallel::AttentionActivations restored = a.attention;
    if (restored.q.rank != 0) return restored;
    restored.q = scratch.allocate(type_, {sequences.rows, heads_ * spec_.head_dim});
    restored.k = scratch.allocate(type_, {sequences.rows, kv_heads_ * spec_.head_dim});
    ops::head_norm_rotary(backend_, a.qkv, weights_.q_norm->weight, weights_.k_norm->weight, sequences.cos,
                          sequences.sin, restored.q, restored.k, a.head_rstd, spec_.norm_eps);
    return restored;
}

void AttentionBlock::backward(const AttentionBlockActivations& a, const Tensor& d_stream,
                              const parallel::Sequences& sequences, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t rows = sequences.rows;
    const std::vector<parallel::RowChunk> all_rows =
        parallel::row_chunks(sequences.tp_rows, sequence_parallel_.rank(), false);
    const Tensor d_attn_out = scratch.allocate(type_, {rows, a.attn_out.columns()}),
                 d_q = scratch.allocate(type_, {rows, a.attn_out.columns()}),
                 d_k = scratch.allocate(type_, {rows, kv_heads_ * spec_.head_dim}),
                 d_qkv = scratch.allocate(type_, {rows, a.qkv.columns()});
    output_.backward(d_stream, a.attn_out, d_attn_out, all_rows, scratch);
    {
        const backend::ArenaScope restored(scratch);
        attention_.backward(restored_attention(a, sequences, scratch), d_attn_out, a.attn_out, sequences, d_q,
                            d_k, d_qkv, scratch);
    }
    ops::head_norm_rotary_backward(backend_, d_q, d_k, a.qkv, weights_.q_norm->weight,
                                   weights_.k_norm->weight, sequences.cos, sequences.sin, a.head_rstd, d_qkv,
                                   weights_.q_norm->gradient, weights_.k_norm->gradient, scratch);
    // d_qkv is complete only now: attention has written its value columns, and the rotation those of queries
    // and keys.
    const Tensor d_normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
    {
        const backend::ArenaScope restored(scratch);
        Tensor normed = a.normed;
        if (normed.rank == 0 && weights_.qkv->trainable) {  // only the weight's gradient reads it
            normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            ops::rms_norm(backend_, a.input, weights_.norm->weight, normed, a.rstd, spec_.norm_eps);
        }
        qkv_.backward(d_qkv, normed, d_normed, all_rows, scratch);
    }
    ops::rms_norm_backward(backend_, d_normed, a.input, weights_.norm->weight, a.rstd, d_stream,
                           weights_.norm->gradient, true, scratch);
}

}  // namespace maestro::model
