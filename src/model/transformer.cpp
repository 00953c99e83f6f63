#include "model/transformer.hpp"

#include <algorithm>

#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"
#include "ops/swiglu.hpp"

namespace maestro::model {

namespace {

/// Returns this tp rank's part of `size` channels, in whole units.
Range tp_part_in_units(std::int64_t size, std::int64_t unit, const parallel::Mesh& mesh) {
    const Range part = mesh.tp_part(size / unit);
    return {part.begin * unit, part.end * unit};
}

Range shifted(const Range& range, std::int64_t by) {
    return {range.begin + by, range.end + by};
}

}  // namespace

Transformer::Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                         const parallel::Mesh& mesh, parallel::ParameterStore& store)
    : backend_(backend),
      store_(store),
      spec_(spec),
      type_(role.compute),
      checkpointing_(!role.needs_backward                 ? Checkpointing::keep_nothing
                     : role.recompute == Recompute::layer ? Checkpointing::keep_layer_inputs
                     : role.recompute == Recompute::cheap ? Checkpointing::keep_costly
                                                          : Checkpointing::keep_all),
      tp_overlap_(role.tp_overlap),
      trained_(role.trained),
      heads_(spec.heads / mesh.degrees().tp),
      kv_heads_(std::max(spec.kv_heads / mesh.degrees().tp, 1)),
      mlp_(tp_part_in_units(spec.mlp, 1, mesh).size()),
      sequence_parallel_(backend, mesh.tp()),
      attention_(backend, mesh, role.compute, spec.head_dim) {
    const std::int64_t dim = spec.head_dim, width = spec.width;
    const std::int64_t q_columns = spec.heads * dim, kv_columns = spec.kv_heads * dim;
    const Range heads = tp_part_in_units(q_columns, dim, mesh), mlp = tp_part_in_units(spec.mlp, 1, mesh);
    // With more tp ranks than KV heads, every rank holds one KV head and consecutive ranks hold copies of the
    // same one. Each copy meets the queries of one rank alone, so its gradient is partial: Axis::kv makes
    // the optimizer sum the copies.
    const std::int64_t first_kv_row = std::int64_t{mesh.tp_rank()} * spec.kv_heads / mesh.degrees().tp * dim;
    const Range kv_rows{first_kv_row, first_kv_row + kv_heads_ * dim};
    const auto kv_part = [&](std::int64_t first_row) {
        return parallel::ParameterPart{shifted(kv_rows, first_row), parallel::Axis::kv};
    };
    // Declared in the order in which forward uses them. The order determines where they lie in the flat
    // arrays, and with that the shards of the optimizer.
    const int first = role.stage.first_layer,
              count = role.stage.layers > 0 ? role.stage.layers : spec.layers - first;
    MAESTRO_CHECK(first >= 0 && count > 0 && first + count <= spec.layers,
                  "stage {} of {} has layers {} to {} of {}", role.stage.index, role.section, first,
                  first + count - 1, spec.layers);
    for (int i = first; i < first + count; ++i) {
        const int number = store.begin_layer();
        const auto name = [&](const char* suffix) { return "layers." + std::to_string(i) + "." + suffix; };
        // Norms are whole on every tp rank, and each rank's gradient is partial: it has normalized its local
        // rows only, or (q_norm, k_norm) its own heads.
        const auto norm = [&](const char* suffix, std::int64_t size) {
            return &store.declare(name(suffix), {size}, parallel::Init::ones, role.trained);
        };
        const auto matrix = [&](const char* suffix, std::vector<std::int64_t> shape, parallel::Init init,
                                const std::vector<parallel::ParameterPart>& parts, Range columns) {
            return &store.declare(name(suffix), std::move(shape), init, role.trained, parts, columns);
        };
        layers_.push_back({
            .attention_norm = norm("attention.norm.weight", width),
            // One GEMM computes queries, keys and values, and another one gate and up: the input is read
            // once, and a wide GEMM runs closer to the peak rate than three narrow ones.
            .qkv = matrix("attention.qkv.weight", {q_columns + 2 * kv_columns, width}, parallel::Init::normal,
                          {{heads}, kv_part(q_columns), kv_part(q_columns + kv_columns)}, {0, width}),
            .q_norm = norm("attention.q_norm.weight", dim),
            .k_norm = norm("attention.k_norm.weight", dim),
            .output = matrix("attention.output.weight", {width, q_columns}, parallel::Init::residual,
                             {{{0, width}}}, heads),
            .mlp_norm = norm("mlp.norm.weight", width),
            .gate_up = matrix("mlp.gate_up.weight", {2 * std::int64_t{spec.mlp}, width},
                              parallel::Init::normal, {{mlp}, {shifted(mlp, spec.mlp)}}, {0, width}),
            .down =
                matrix("mlp.down.weight", {width, spec.mlp}, parallel::Init::residual, {{{0, width}}}, mlp),
            .number = number,
        });
    }
}

void Transformer::prepare(std::span<const std::int64_t> rows, parallel::AttentionMask mask,
                          bool backward) const {
    attention_.prepare(rows, mask, heads_, kv_heads_, false);
    if (backward) attention_.prepare(rows, mask, heads_, kv_heads_, true);
}

LayerActivations Transformer::layer_forward(const Layer& layer, const Tensor& input, const Tensor& output,
                                            const parallel::Sequences& sequences, backend::Arena& saved,
                                            backend::Arena& scratch) const {
    const std::int64_t local = input.dim(0), rows = sequences.rows, width = spec_.width, dim = spec_.head_dim;
    const DType statistics = ops::accumulate_type(type_);
    const std::span<const std::int64_t> tp_rows = sequences.tp_rows;
    // What backward computes again is not saved.
    backend::Arena& passing = checkpointing_ == Checkpointing::keep_costly ? scratch : saved;
    LayerActivations a;
    a.input = input;
    a.normed = passing.allocate(type_, {local, width});
    a.rstd = saved.allocate(statistics, {local});
    a.qkv = saved.allocate(type_, {rows, (heads_ + 2 * kv_heads_) * dim});
    a.head_rstd = saved.allocate(statistics, {rows, heads_ + kv_heads_});
    a.attention = attention_.allocate(sequences, heads_, kv_heads_, saved, passing);
    a.attn_out = saved.allocate(type_, {rows, heads_ * dim});
    a.residual = saved.allocate(type_, {local, width});
    a.mlp_normed = passing.allocate(type_, {local, width});
    a.mlp_rstd = saved.allocate(statistics, {local});
    a.gate_up = saved.allocate(type_, {rows, 2 * mlp_});
    // Read in backward by the weight gradient of `down`.
    a.gated = passing.allocate(type_, {rows, mlp_});

    ops::rms_norm(backend_, input, layer.attention_norm->weight, a.normed, a.rstd, spec_.norm_eps);
    {
        // A tp rank computes some of the columns of qkv for all rows of the slice, so it gathers the rows
        // first. The gathered copy is not saved: keeping it would undo what sequence parallelism saves.
        const backend::ArenaScope scope(scratch);
        ops::linear(backend_, sequence_parallel_.all_gather(a.normed, tp_rows, scratch), layer.qkv->weight,
                    a.qkv);
    }
    {
        const backend::ArenaScope scope(scratch);
        // Under Ulysses attention saves queries and keys of other rows and heads than those computed here, so
        // these are temporary. Otherwise they are written straight to where attention saves them.
        const bool exchanged = attention_.uses_ulysses();
        const Tensor q = exchanged ? scratch.allocate(type_, {rows, heads_ * dim}) : a.attention.q,
                     k = exchanged ? scratch.allocate(type_, {rows, kv_heads_ * dim}) : a.attention.k;
        ops::head_norm_rotary(backend_, a.qkv, layer.q_norm->weight, layer.k_norm->weight, sequences.cos,
                              sequences.sin, q, k, a.head_rstd, spec_.norm_eps);
        attention_.forward(a.attention, q, k, a.qkv, sequences, a.attn_out, scratch);
    }
    // The GEMM of the output projection adds the residual stream. In bf16 this rounds the sum once, where a
    // GEMM followed by an addition would round twice. (With several tp ranks the partial sum of each rank is
    // rounded as well, because it is sent in bf16.)
    sequence_parallel_.add_row_parallel(a.attn_out, layer.output->weight, input, a.residual, tp_rows,
                                        scratch);

    ops::rms_norm(backend_, a.residual, layer.mlp_norm->weight, a.mlp_normed, a.mlp_rstd, spec_.norm_eps);
    mlp_forward(layer, a, sequences, output, scratch);
    if (checkpointing_ == Checkpointing::keep_costly) {
        a.normed = a.mlp_normed = a.gated = {};
        if (!attention_.uses_ulysses()) a.attention.q = a.attention.k = {};
    }
    return a;
}

std::vector<parallel::RowChunk> Transformer::one_chunk(const parallel::Sequences& sequences) const {
    return parallel::row_chunks(sequences.tp_rows, sequence_parallel_.rank(), false);
}

std::vector<parallel::RowChunk> Transformer::mlp_chunks(const parallel::Sequences& sequences) const {
    // About 25 us of a GEMM of bf16 on an H100, where an exchange takes 15 us before its first byte arrives.
    constexpr double kMinFlops = 0x1p34;
    const double flops = 2.0 * static_cast<double>(sequences.rows) * spec_.width * spec_.mlp /
                         static_cast<double>(sequences.tp_rows.size());
    const bool gpu = !backend_.shares_memory();
    const bool overlap = tp_overlap_ == TpOverlap::always ||
                         (tp_overlap_ == TpOverlap::automatic && gpu && flops >= kMinFlops);
    return parallel::row_chunks(sequences.tp_rows, sequence_parallel_.rank(),
                                overlap && !sequence_parallel_.single_rank());
}

void Transformer::mlp_forward(const Layer& layer, const LayerActivations& a,
                              const parallel::Sequences& sequences, const Tensor& output,
                              backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::vector<parallel::RowChunk> chunks = mlp_chunks(sequences);
    const Tensor all = sequence_parallel_.rows_of_all(a.mlp_normed, sequences.rows, scratch);
    std::vector<parallel::StartedGather> inputs =
        sequence_parallel_.start_all_gather(a.mlp_normed, chunks, all);
    std::vector<collective::Operation> sums;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
        // The gather of the second chunk goes on beside the first GEMM, and the sum of the first chunk beside
        // the GEMMs of the second.
        const auto [begin, end] = chunks[c].slice;
        const Tensor gate_up = a.gate_up.slice(begin, end), gated = a.gated.slice(begin, end);
        ops::linear(backend_, inputs[c].wait(), layer.gate_up->weight, gate_up);
        ops::swiglu(backend_, gate_up, gated);
        if (sequence_parallel_.single_rank())
            return ops::linear_accumulate(backend_, gated, layer.down->weight, output, a.residual);
        // The gathered rows have been read, and their memory is free for this rank's part of the sums.
        ops::linear(backend_, gated, layer.down->weight, all.slice(begin, end));
        sequence_parallel_.launch_reduce_scatter(all, output, chunks[c], sums, scratch);
    }
    for (collective::Operation& sum : sums) sum.wait();
    // Not before the sum, which would then have the residual stream of every rank.
    ops::add(backend_, a.residual, output);
}

StackActivations Transformer::forward(const Tensor& input, const parallel::Sequences& sequences,
                                      backend::Arena& saved, backend::Arena& scratch) const {
    StackActivations stack;
    Tensor stream = input;
    const auto allocate_stream = [&](backend::Arena& arena) {
        return arena.allocate(type_, {input.dim(0), spec_.width});
    };
    if (checkpointing_ == Checkpointing::keep_nothing) {
        // Two residual streams take turns, and each layer's activations overwrite those of the layer before:
        // the memory of a frozen section does not grow with its depth.
        const Tensor outputs[] = {allocate_stream(scratch), allocate_stream(scratch)};
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            store_.layer_needed(layers_[i].number);
            const backend::ArenaScope scope(scratch);
            layer_forward(layers_[i], stream, outputs[i % 2], sequences, scratch, scratch);
            stream = outputs[i % 2];
        }
        stack.output = stream;
        return stack;
    }
    for (const Layer& layer : layers_) {
        store_.layer_needed(layer.number);
        const Tensor output = allocate_stream(saved);
        const backend::ArenaScope scope(scratch);
        if (checkpointing_ == Checkpointing::keep_layer_inputs) {
            layer_forward(layer, stream, output, sequences, scratch, scratch);
            stack.layers.push_back({});
            stack.layers.back().input = stream;
        } else {
            stack.layers.push_back(layer_forward(layer, stream, output, sequences, saved, scratch));
        }
        stream = output;
    }
    stack.output = stream;
    return stack;
}

Tensor Transformer::receive(std::span<const Tensor> inputs, std::int64_t local, backend::Arena& arena) const {
    const Tensor stream = arena.allocate(type_, {local, spec_.width});
    std::int64_t row = 0;
    for (const Tensor& rows : inputs) {
        ops::convert(backend_, rows, stream.slice(row, row + rows.dim(0)));
        row += rows.dim(0);
    }
    MAESTRO_CHECK(row == local, "the stage before has delivered {} rows, this rank holds {}", row, local);
    return stream;
}

Tensor Transformer::send(const StackActivations& stack, backend::Arena& saved) const {
    // With a backward pass the output lies in `saved` already.
    if (checkpointing_ != Checkpointing::keep_nothing) return stack.output;
    const Tensor output = saved.allocate(type_, {stack.output.dim(0), spec_.width});
    ops::convert(backend_, stack.output, output);
    return output;
}

void Transformer::backward(StackActivations& stack, const parallel::Sequences& sequences,
                           const Tensor& d_stream, backend::Arena& scratch) const {
    for (std::size_t i = layers_.size(); i-- > 0;) {
        const backend::ArenaScope scope(scratch);
        LayerActivations recomputed;
        if (checkpointing_ == Checkpointing::keep_layer_inputs) {
            // The recomputed output is not read: only the activations within the layer are needed.
            const Tensor output = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            recomputed =
                layer_forward(layers_[i], stack.layers[i].input, output, sequences, scratch, scratch);
        }
        const LayerActivations& a =
            checkpointing_ == Checkpointing::keep_layer_inputs ? recomputed : stack.layers[i];
        // d_stream passes through both residual connections unchanged, and the backward pass of each norm
        // adds the gradient of its branch. The scratch memory of the MLP is free again before attention
        // allocates its own, so that a layer needs the larger of the two and not their sum.
        mlp_backward(layers_[i], a, sequences, d_stream, scratch);
        attention_backward(layers_[i], a, sequences, d_stream, scratch);
        store_.layer_final(layers_[i].number);
    }
}

void Transformer::column_parallel_backward(const Tensor& d_output, const parallel::Parameter& weight,
                                           const Tensor& input, const Tensor& d_input,
                                           std::span<const parallel::RowChunk> chunks,
                                           backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    // Each tp rank has some of the output columns, so its gradient of the input is a partial sum over them;
    // the reduce-scatter completes the sum and leaves each rank its own rows. The input is gathered again for
    // the gradient of the weight, because it was not saved. Each exchange goes on beside GEMMs that do not
    // need it.
    const Tensor partial = sequence_parallel_.rows_of_all(d_input, d_output.dim(0), scratch);
    Tensor all;
    std::vector<parallel::StartedGather> inputs;
    if (trained_) {
        all = sequence_parallel_.rows_of_all(input, d_output.dim(0), scratch);
        inputs = sequence_parallel_.start_all_gather(input, chunks, all);
    }
    std::vector<collective::Operation> sums;
    for (const parallel::RowChunk& chunk : chunks) {
        const auto [begin, end] = chunk.slice;
        ops::linear_backward_input(backend_, d_output.slice(begin, end), weight.weight,
                                   partial.slice(begin, end), false);
        sequence_parallel_.launch_reduce_scatter(partial, d_input, chunk, sums, scratch);
    }
    for (parallel::StartedGather& gather : inputs) gather.wait();
    if (trained_) ops::linear_backward_weight(backend_, d_output, all, weight.gradient);
    for (collective::Operation& sum : sums) sum.wait();
}

void Transformer::row_parallel_backward(const Tensor& d_output, const parallel::Parameter& weight,
                                        const Tensor& input, const Tensor& d_input,
                                        std::span<const parallel::RowChunk> chunks,
                                        backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    // The forward pass ended with a reduce-scatter over the rows. Its adjoint is an all-gather: every rank
    // needs the gradient of all rows for its own channels.
    const Tensor all = sequence_parallel_.rows_of_all(d_output, d_input.dim(0), scratch);
    std::vector<parallel::StartedGather> started = sequence_parallel_.start_all_gather(d_output, chunks, all);
    for (std::size_t c = 0; c < chunks.size(); ++c) {
        const auto [begin, end] = chunks[c].slice;
        ops::linear_backward_input(backend_, started[c].wait(), weight.weight, d_input.slice(begin, end),
                                   false);
    }
    if (trained_) ops::linear_backward_weight(backend_, all, input, weight.gradient);
}

Tensor Transformer::restored_norm(const Tensor& normed, const Tensor& x, const parallel::Parameter& weight,
                                  const Tensor& rstd, backend::Arena& scratch) const {
    // Only gradients of weights read it.
    if (normed.rank != 0 || !trained_) return normed;
    const Tensor again = scratch.allocate(type_, {x.dim(0), spec_.width});
    ops::rms_norm(backend_, x, weight.weight, again, rstd, spec_.norm_eps);
    return again;
}

parallel::AttentionActivations Transformer::restored_attention(const Layer& layer, const LayerActivations& a,
                                                               const parallel::Sequences& sequences,
                                                               backend::Arena& scratch) const {
    parallel::AttentionActivations restored = a.attention;
    if (restored.q.rank != 0) return restored;
    restored.q = scratch.allocate(type_, {sequences.rows, heads_ * spec_.head_dim});
    restored.k = scratch.allocate(type_, {sequences.rows, kv_heads_ * spec_.head_dim});
    ops::head_norm_rotary(backend_, a.qkv, layer.q_norm->weight, layer.k_norm->weight, sequences.cos,
                          sequences.sin, restored.q, restored.k, a.head_rstd, spec_.norm_eps);
    return restored;
}

void Transformer::mlp_backward(const Layer& layer, const LayerActivations& a,
                               const parallel::Sequences& sequences, const Tensor& d_stream,
                               backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::vector<parallel::RowChunk> chunks = mlp_chunks(sequences);
    const Tensor d_gated = scratch.allocate(type_, {sequences.rows, mlp_});
    {
        const backend::ArenaScope restored(scratch);
        Tensor gated = a.gated;
        if (gated.rank == 0 && trained_) {
            gated = scratch.allocate(type_, {sequences.rows, mlp_});
            ops::swiglu(backend_, a.gate_up, gated);
        }
        row_parallel_backward(d_stream, *layer.down, gated, d_gated, chunks, scratch);
    }
    const Tensor d_gate_up = scratch.allocate(type_, {sequences.rows, a.gate_up.columns()}),
                 d_normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
    ops::swiglu_backward(backend_, d_gated, a.gate_up, d_gate_up);
    {
        const backend::ArenaScope restored(scratch);
        const Tensor normed = restored_norm(a.mlp_normed, a.residual, *layer.mlp_norm, a.mlp_rstd, scratch);
        column_parallel_backward(d_gate_up, *layer.gate_up, normed, d_normed, chunks, scratch);
    }
    ops::rms_norm_backward(backend_, d_normed, a.residual, layer.mlp_norm->weight, a.mlp_rstd, d_stream,
                           layer.mlp_norm->gradient, true, scratch);
}

void Transformer::attention_backward(const Layer& layer, const LayerActivations& a,
                                     const parallel::Sequences& sequences, const Tensor& d_stream,
                                     backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t rows = sequences.rows;
    const std::vector<parallel::RowChunk> chunks = one_chunk(sequences);
    const Tensor d_attn_out = scratch.allocate(type_, {rows, a.attn_out.columns()}),
                 d_q = scratch.allocate(type_, {rows, a.attn_out.columns()}),
                 d_k = scratch.allocate(type_, {rows, kv_heads_ * spec_.head_dim}),
                 d_qkv = scratch.allocate(type_, {rows, a.qkv.columns()});
    row_parallel_backward(d_stream, *layer.output, a.attn_out, d_attn_out, chunks, scratch);
    {
        const backend::ArenaScope restored(scratch);
        attention_.backward(restored_attention(layer, a, sequences, scratch), d_attn_out, a.attn_out,
                            sequences, d_q, d_k, d_qkv, scratch);
    }
    ops::head_norm_rotary_backward(backend_, d_q, d_k, a.qkv, layer.q_norm->weight, layer.k_norm->weight,
                                   sequences.cos, sequences.sin, a.head_rstd, d_qkv, layer.q_norm->gradient,
                                   layer.k_norm->gradient, scratch);
    // d_qkv is complete only now: attention has written its value columns, and the rotation those of queries
    // and keys.
    const Tensor d_normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
    {
        const backend::ArenaScope restored(scratch);
        const Tensor normed = restored_norm(a.normed, a.input, *layer.attention_norm, a.rstd, scratch);
        column_parallel_backward(d_qkv, *layer.qkv, normed, d_normed, chunks, scratch);
    }
    ops::rms_norm_backward(backend_, d_normed, a.input, layer.attention_norm->weight, a.rstd, d_stream,
                           layer.attention_norm->gradient, true, scratch);
}

}  // namespace maestro::model
