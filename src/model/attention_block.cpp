#include "model/attention_block.hpp"

#include <algorithm>
#include <vector>

#include "backend/host_access.hpp"
#include "model/kind.hpp"
#include "ops/dispatch.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

namespace {

Range shifted(const Range& range, std::int64_t by) {
    return {range.begin + by, range.end + by};
}

using parallel::gradient_of, parallel::weight_of;

}  // namespace

AttentionBlock::AttentionBlock(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                               const parallel::Mesh& mesh, parallel::ParameterStore& store,
                               const std::string& prefix, const AttentionForm& form)
    : backend_(backend),
      mesh_(&mesh),
      spec_(spec),
      form_(form),
      rotary_(kind_of(spec).rotary(form)),
      type_(role.compute),
      backward_(role.needs_backward),
      heads_(form.heads / mesh.degrees().tp),
      kv_heads_(std::max(form.kv_heads / mesh.degrees().tp, 1)),
      sequence_parallel_(backend, mesh.tp()),
      attention_(backend, mesh, role.compute, form.head_dim),
      norm_(backend, spec.form.norm, spec.norm_eps, store, prefix + "attention.norm", spec.width,
            role.trained),
      weights_(declare(store, role, mesh, prefix)),
      qkv_(backend, sequence_parallel_, *weights_.qkv, weights_.qkv_bias, weights_.qkv_adapter),
      output_(backend, sequence_parallel_, *weights_.output, weights_.output_bias, weights_.output_adapter) {}

/// Parameters are declared in the order in which forward uses them. It determines where they lie in the flat
/// arrays, and with that the shards of the optimizer.
AttentionBlock::Weights AttentionBlock::declare(parallel::ParameterStore& store, const Role& role,
                                                const parallel::Mesh& mesh, const std::string& prefix) const {
    const std::int64_t dim = form_.head_dim, width = spec_.width;
    const std::int64_t q_columns = form_.heads * dim, kv_columns = form_.kv_heads * dim;
    const Range part = mesh.tp_part(form_.heads), heads{part.begin * dim, part.end * dim};
    // With more tp ranks than KV heads, every rank holds one KV head and consecutive ranks hold copies of the
    // same one. Each copy meets the queries of one rank alone, so its gradient is partial: Axis::kv makes
    // the optimizer sum the copies.
    const std::int64_t first_kv_row = std::int64_t{mesh.tp_rank()} * form_.kv_heads / mesh.degrees().tp * dim;
    const Range kv_rows{first_kv_row, first_kv_row + kv_heads_ * dim};
    const auto kv_rows_at = [&](std::int64_t first_row) {
        return parallel::ParameterRows{shifted(kv_rows, first_row), parallel::Axis::kv};
    };
    const std::vector<parallel::ParameterRows> qkv_rows = {
        {heads}, kv_rows_at(q_columns), kv_rows_at(q_columns + kv_columns)};
    // Whole on every tp rank. Each rank's gradient is partial, of the heads that it has normalized.
    const auto head_norm = [&](const char* name) {
        return &store.declare(prefix + name, {dim}, parallel::Init::ones, role.trained);
    };
    Weights weights{};
    // One GEMM computes queries, keys and values: the input is read once, and a wide GEMM runs closer to the
    // peak rate than three narrow ones.
    weights.qkv = &store.declare(prefix + "attention.qkv.weight", {q_columns + 2 * kv_columns, width},
                                 parallel::Init::normal, role.trained, qkv_rows, {0, width});
    if (spec_.form.bias != LayerForm::Bias::none)
        weights.qkv_bias = &store.declare(prefix + "attention.qkv.bias", {q_columns + 2 * kv_columns},
                                          parallel::Init::zeros, role.trained, qkv_rows, {0, 1});
    const bool fused = spec_.form.fused_qkv;
    std::vector<parallel::AdapterTarget> targets;
    if (fused)
        targets = {{"attn.qkv", q_columns + 2 * kv_columns, qkv_rows}};
    else
        targets = {{"q_proj", q_columns, {{heads}}},
                   {"k_proj", kv_columns, {kv_rows_at(0)}},
                   {"v_proj", kv_columns, {kv_rows_at(0)}}};
    weights.qkv_adapter = parallel::LowRankAdapter::column_parallel(store, prefix + "attention.qkv",
                                                                    role.lora, width, targets, role.trained);
    if (spec_.form.head_norm) {
        weights.q_norm = head_norm("attention.q_norm.weight");
        weights.k_norm = head_norm("attention.k_norm.weight");
    }
    weights.output = &store.declare(prefix + "attention.output.weight", {width, q_columns},
                                    parallel::Init::residual, role.trained, {{{0, width}}}, heads);
    if (spec_.form.bias == LayerForm::Bias::all)
        weights.output_bias =
            &store.declare(prefix + "attention.output.bias", {width}, parallel::Init::zeros, role.trained);
    weights.output_adapter = parallel::LowRankAdapter::row_parallel(store, prefix + "attention.output",
                                                                    role.lora, fused ? "attn.proj" : "o_proj",
                                                                    width, q_columns, heads, role.trained);
    return weights;
}

void AttentionBlock::prepare(std::span<const std::int64_t> rows, std::int64_t sequences,
                             parallel::AttentionMask mask, bool backward) const {
    attention_.prepare(rows, sequences, mask, heads_, kv_heads_, false);
    if (backward) attention_.prepare(rows, sequences, mask, heads_, kv_heads_, true);
}

AttentionBlockTables AttentionBlock::tables(const parallel::Sequences& sequences,
                                            std::span<const std::vector<std::int32_t>> positions,
                                            backend::Arena& kept, backend::Arena& scratch) const {
    // Cosines and sines stay fp32 in bf16 runs: rounded to 8 bits, neighbouring positions could not be
    // distinguished. They are those of all rows of the slice, not only of this rank's: rows are gathered
    // before queries and keys are computed and rotated.
    const DType statistics = ops::accumulate_type(type_);
    const std::int64_t pairs = form_.head_dim / 2;
    AttentionBlockTables tables{.cos = kept.allocate(statistics, {sequences.rows, pairs}),
                                .sin = kept.allocate(statistics, {sequences.rows, pairs}),
                                .masks = {sequences, *mesh_}};
    tables.masks.copy_to_device(backend_, backward_, sequences.most_sequences, kept);
    const backend::ArenaScope scope(scratch);
    std::vector<Tensor> on_device;
    for (const std::vector<std::int32_t>& along_axis : positions)
        on_device.push_back(backend::to_device(backend_, along_axis, scratch));
    ops::fill_rotary(backend_, on_device, rotary_, tables.cos, tables.sin);
    return tables;
}

AttentionBlockActivations AttentionBlock::allocate(const Tensor& input, const parallel::Sequences& sequences,
                                                   backend::Arena& saved, backend::Arena& passing) const {
    const std::int64_t local = input.dim(0), rows = sequences.rows, dim = form_.head_dim;
    AttentionBlockActivations a;
    a.input = input;
    a.normed = passing.allocate(type_, {local, spec_.width});
    a.norm = norm_.allocate(local, type_, saved);
    a.qkv = saved.allocate(type_, {rows, (heads_ + 2 * kv_heads_) * dim});
    if (spec_.form.head_norm)
        a.head_rstd = saved.allocate(ops::accumulate_type(type_), {rows, heads_ + kv_heads_});
    a.attention = attention_.allocate(sequences, heads_, kv_heads_, saved, passing);
    a.attn_out = saved.allocate(type_, {rows, heads_ * dim});
    return a;
}

void AttentionBlock::forward(AttentionBlockActivations& a, const Tensor& output,
                             const parallel::Sequences& sequences, const AttentionBlockTables& tables,
                             backend::Arena& scratch) const {
    const std::int64_t rows = sequences.rows, dim = form_.head_dim;
    norm_.forward(a.input, a.normed, a.norm);
    qkv_.forward(a.normed, a.qkv, sequences.tp_rows, scratch);
    {
        const backend::ArenaScope scope(scratch);
        // Under Ulysses attention saves queries and keys of other rows and heads than those computed here, so
        // these are temporary. Otherwise they are written straight to where attention saves them.
        const bool exchanged = attention_.uses_ulysses();
        const Tensor q = exchanged ? scratch.allocate(type_, {rows, heads_ * dim}) : a.attention.q,
                     k = exchanged ? scratch.allocate(type_, {rows, kv_heads_ * dim}) : a.attention.k;
        make_queries_and_keys(a, tables, q, k);
        attention_.forward(a.attention, q, k, a.qkv, tables.masks, a.attn_out, scratch);
    }
    output_.forward_add(a.attn_out, a.input, output, sequences.tp_rows, scratch);
}

void AttentionBlock::make_queries_and_keys(const AttentionBlockActivations& a,
                                           const AttentionBlockTables& tables, const Tensor& q,
                                           const Tensor& k) const {
    ops::head_norm_rotary(backend_, a.qkv, weight_of(weights_.q_norm), weight_of(weights_.k_norm), tables.cos,
                          tables.sin, q, k, a.head_rstd, spec_.norm_eps);
}

void AttentionBlock::discard_cheap(AttentionBlockActivations& a) const {
    a.normed = {};
    if (!attention_.uses_ulysses()) a.attention.q = a.attention.k = {};
}

parallel::AttentionActivations AttentionBlock::restored_attention(const AttentionBlockActivations& a,
                                                                  const AttentionBlockTables& tables,
                                                                  backend::Arena& scratch) const {
    parallel::AttentionActivations restored = a.attention;
    if (restored.q.rank != 0) return restored;
    restored.q = scratch.allocate(type_, {a.qkv.dim(0), heads_ * form_.head_dim});
    restored.k = scratch.allocate(type_, {a.qkv.dim(0), kv_heads_ * form_.head_dim});
    make_queries_and_keys(a, tables, restored.q, restored.k);
    return restored;
}

void AttentionBlock::backward(const AttentionBlockActivations& a, const Tensor& d_stream,
                              const parallel::Sequences& sequences, const AttentionBlockTables& tables,
                              backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t rows = sequences.rows;
    const std::vector<parallel::RowChunk> all_rows =
        parallel::row_chunks(sequences.tp_rows, sequence_parallel_.rank(), false);
    const Tensor d_attn_out = scratch.allocate(type_, {rows, a.attn_out.columns()}),
                 d_q = scratch.allocate(type_, {rows, a.attn_out.columns()}),
                 d_k = scratch.allocate(type_, {rows, kv_heads_ * form_.head_dim}),
                 d_qkv = scratch.allocate(type_, {rows, a.qkv.columns()});
    output_.backward(d_stream, a.attn_out, d_attn_out, all_rows, scratch);
    {
        const backend::ArenaScope restored(scratch);
        attention_.backward(restored_attention(a, tables, scratch), d_attn_out, a.attn_out, tables.masks, d_q,
                            d_k, d_qkv, scratch);
    }
    ops::head_norm_rotary_backward(backend_, d_q, d_k, a.qkv, weight_of(weights_.q_norm),
                                   weight_of(weights_.k_norm), tables.cos, tables.sin, a.head_rstd, d_qkv,
                                   gradient_of(weights_.q_norm), gradient_of(weights_.k_norm), scratch);
    // d_qkv is complete only now: attention has written its value columns, and the rotation those of queries
    // and keys.
    const Tensor d_normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
    {
        const backend::ArenaScope restored(scratch);
        Tensor normed = a.normed;
        if (normed.rank == 0 && qkv_.backward_reads_input()) {
            normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            norm_.forward(a.input, normed, a.norm);
        }
        qkv_.backward(d_qkv, normed, d_normed, all_rows, scratch);
    }
    norm_.backward(d_normed, a.input, a.norm, d_stream, true, scratch);
}

}  // namespace maestro::model
