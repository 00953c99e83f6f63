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

/// This tp rank's part of `size` channels, in whole units.
Range part_in(std::int64_t size, std::int64_t unit, const parallel::Mesh& mesh) {
    const Range part = mesh.tp_part(size / unit);
    return {part.begin * unit, part.end * unit};
}

Range moved(const Range& range, std::int64_t by) {
    return {range.begin + by, range.end + by};
}

}  // namespace

Transformer::Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                         const parallel::Mesh& mesh, parallel::ParameterStore& store)
    : backend_(backend),
      spec_(spec),
      type_(role.compute),
      keeps_(!role.needs_backward ? Keeps::nothing
             : role.recompute     ? Keeps::inputs
                                  : Keeps::all),
      trained_(role.trained),
      heads_(spec.heads / mesh.degrees().tp),
      kv_heads_(std::max(spec.kv_heads / mesh.degrees().tp, 1)),
      mlp_(part_in(spec.mlp, 1, mesh).size()),
      sequence_parallel_(backend, mesh.tp()),
      attention_(backend, mesh, role.compute, spec.head_dim) {
    const std::int64_t dim = spec.head_dim, width = spec.width;
    const std::int64_t all_heads = spec.heads * dim, all_keys = spec.kv_heads * dim;
    const Range heads = part_in(all_heads, dim, mesh), mlp = part_in(spec.mlp, 1, mesh);
    // With more tp ranks than key heads each rank holds one of them, and ranks that follow each other the
    // same.
    const std::int64_t first_key = std::int64_t{mesh.tp_rank()} * spec.kv_heads / mesh.degrees().tp * dim;
    const Range keys{first_key, first_key + kv_heads_ * dim};
    const auto kv_part = [&](std::int64_t first_row) {
        return parallel::ParameterPart{moved(keys, first_row), parallel::Axis::kv};
    };
    for (int i = 0; i < spec.layers; ++i) {
        const auto name = [&](const char* rest) { return "layers." + std::to_string(i) + "." + rest; };
        const auto norm = [&](const char* rest, std::int64_t size) {
            return &store.declare(name(rest), {size}, parallel::Init::ones, role.trained);
        };
        const auto matrix = [&](const char* rest, std::vector<std::int64_t> shape, parallel::Init init,
                                const std::vector<parallel::ParameterPart>& parts, Range columns) {
            return &store.declare(name(rest), std::move(shape), init, role.trained, parts, columns);
        };
        layers_.push_back({
            .attention_norm = norm("attention.norm.weight", width),
            // One product computes queries, keys and values, and another gate and up: the input is read once,
            // and one wide product runs faster than three narrow ones.
            .qkv = matrix("attention.qkv.weight", {all_heads + 2 * all_keys, width}, parallel::Init::normal,
                          {{heads}, kv_part(all_heads), kv_part(all_heads + all_keys)}, {0, width}),
            .q_norm = norm("attention.q_norm.weight", dim),
            .k_norm = norm("attention.k_norm.weight", dim),
            .output = matrix("attention.output.weight", {width, all_heads}, parallel::Init::residual,
                             {{{0, width}}}, heads),
            .mlp_norm = norm("mlp.norm.weight", width),
            .gate_up = matrix("mlp.gate_up.weight", {2 * std::int64_t{spec.mlp}, width},
                              parallel::Init::normal, {{mlp}, {moved(mlp, spec.mlp)}}, {0, width}),
            .down =
                matrix("mlp.down.weight", {width, spec.mlp}, parallel::Init::residual, {{{0, width}}}, mlp),
        });
    }
}

void Transformer::prepare(std::span<const std::int64_t> rows, parallel::AttentionMask mask,
                          bool backward) const {
    attention_.prepare(rows, mask, heads_, kv_heads_, false);
    if (backward) attention_.prepare(rows, mask, heads_, kv_heads_, true);
}

LayerActivations Transformer::run(const Layer& layer, const Tensor& input, const Tensor& output,
                                  const parallel::Sequences& sequences, backend::Arena& saved,
                                  backend::Arena& scratch) const {
    const std::int64_t local = input.dim(0), rows = sequences.rows, width = spec_.width, dim = spec_.head_dim;
    const DType statistics = ops::accumulate_type(type_);
    const std::span<const std::int64_t> tp_rows = sequences.tp_rows;
    LayerActivations a;
    a.input = input;
    a.normed = saved.allocate(type_, {local, width});
    a.rstd = saved.allocate(statistics, {local});
    a.qkv = saved.allocate(type_, {rows, (heads_ + 2 * kv_heads_) * dim});
    a.head_rstd = saved.allocate(statistics, {rows, heads_ + kv_heads_});
    a.attention = attention_.allocate(sequences, heads_, kv_heads_, saved);
    a.attn_out = saved.allocate(type_, {rows, heads_ * dim});
    a.residual = saved.allocate(type_, {local, width});
    a.mlp_normed = saved.allocate(type_, {local, width});
    a.mlp_rstd = saved.allocate(statistics, {local});
    a.gate_up = saved.allocate(type_, {rows, 2 * mlp_});
    a.gated = saved.allocate(type_, {rows, mlp_});

    ops::rms_norm(backend_, input, layer.attention_norm->weight, a.normed, a.rstd, spec_.norm_eps);
    {
        const backend::ArenaScope scope(scratch);
        ops::linear(backend_, sequence_parallel_.all_gather(a.normed, tp_rows, scratch), layer.qkv->weight,
                    a.qkv);
    }
    {
        const backend::ArenaScope scope(scratch);
        const bool exchanged = attention_.uses_ulysses();
        const Tensor q = exchanged ? scratch.allocate(type_, {rows, heads_ * dim}) : a.attention.q,
                     k = exchanged ? scratch.allocate(type_, {rows, kv_heads_ * dim}) : a.attention.k;
        ops::head_norm_rotary(backend_, a.qkv, layer.q_norm->weight, layer.k_norm->weight, sequences.cos,
                              sequences.sin, q, k, a.head_rstd, spec_.norm_eps);
        attention_.forward(a.attention, q, k, a.qkv, sequences, a.attn_out, scratch);
    }
    // The product adds to a copy of the residual stream, so that in bf16 the sum is rounded once (with
    // several tp ranks each rank's part is rounded too).
    ops::convert(backend_, input, a.residual);
    sequence_parallel_.add_row_parallel(a.attn_out, layer.output->weight, a.residual, tp_rows, scratch);

    ops::rms_norm(backend_, a.residual, layer.mlp_norm->weight, a.mlp_normed, a.mlp_rstd, spec_.norm_eps);
    {
        const backend::ArenaScope scope(scratch);
        ops::linear(backend_, sequence_parallel_.all_gather(a.mlp_normed, tp_rows, scratch),
                    layer.gate_up->weight, a.gate_up);
    }
    ops::swiglu(backend_, a.gate_up, a.gated);
    ops::convert(backend_, a.residual, output);
    sequence_parallel_.add_row_parallel(a.gated, layer.down->weight, output, tp_rows, scratch);
    return a;
}

StackActivations Transformer::forward(const Tensor& input, const parallel::Sequences& sequences,
                                      backend::Arena& saved, backend::Arena& scratch) const {
    StackActivations stack;
    Tensor stream = input;
    const auto like_input = [&](backend::Arena& arena) {
        return arena.allocate(type_, {input.dim(0), spec_.width});
    };
    if (keeps_ ==
        Keeps::nothing) {  // two residual streams in turn, and each layer's activations over the last's
        const Tensor outputs[] = {like_input(scratch), like_input(scratch)};
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            const backend::ArenaScope scope(scratch);
            run(layers_[i], stream, outputs[i % 2], sequences, scratch, scratch);
            stream = outputs[i % 2];
        }
        stack.output = stream;
        return stack;
    }
    for (const Layer& layer : layers_) {
        const Tensor output = like_input(saved);
        if (keeps_ == Keeps::inputs) {
            const backend::ArenaScope scope(scratch);
            run(layer, stream, output, sequences, scratch, scratch);
            stack.layers.push_back({});
            stack.layers.back().input = stream;
        } else {
            stack.layers.push_back(run(layer, stream, output, sequences, saved, scratch));
        }
        stream = output;
    }
    stack.output = stream;
    return stack;
}

void Transformer::backward(StackActivations& stack, const parallel::Sequences& sequences,
                           const Tensor& d_stream, backend::Arena& scratch) const {
    for (std::size_t i = layers_.size(); i-- > 0;) {
        const backend::ArenaScope scope(scratch);
        if (keeps_ == Keeps::inputs) {
            // run() writes the layer's output again, which is not read.
            const Tensor output = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            const LayerActivations a =
                run(layers_[i], stack.layers[i].input, output, sequences, scratch, scratch);
            run_back(layers_[i], a, sequences, d_stream, scratch);
        } else {
            run_back(layers_[i], stack.layers[i], sequences, d_stream, scratch);
        }
    }
}

void Transformer::run_back(const Layer& layer, const LayerActivations& a,
                           const parallel::Sequences& sequences, const Tensor& d_stream,
                           backend::Arena& scratch) const {
    const std::int64_t local = d_stream.dim(0), rows = sequences.rows, width = spec_.width;
    const std::span<const std::int64_t> tp_rows = sequences.tp_rows;
    // d_stream passes both residual connections unchanged, and the backward of each norm adds the gradient of
    // its branch in place. The scratch of the MLP is free before attention takes its own: a layer needs the
    // larger of the two, not their sum.
    const auto like = [&](const Tensor& t) { return scratch.allocate(type_, {rows, t.columns()}); };
    // A product with split columns: the gradient of its input is summed over the tp ranks, each of which has
    // some of the outputs. For the gradient of the weights its input is gathered again, because keeping it
    // would take the memory that sequence parallelism saves.
    const auto column_parallel_backward = [&](const Tensor& d_output, const parallel::Parameter& weight,
                                              const Tensor& input, const Tensor& d_input) {
        const backend::ArenaScope scope(scratch);
        const Tensor part = sequence_parallel_.partial(d_input, tp_rows, scratch);
        ops::linear_backward_input(backend_, d_output, weight.weight, part, false);
        if (trained_)
            ops::linear_backward_weight(
                backend_, d_output, sequence_parallel_.all_gather(input, tp_rows, scratch), weight.gradient);
        sequence_parallel_.reduce_scatter(part, d_input, tp_rows, scratch);
    };
    {
        backend::ArenaScope scope(scratch);
        const Tensor d_gated = like(a.gated), d_gate_up = like(a.gate_up),
                     d_normed = scratch.allocate(type_, {local, width});
        {
            const backend::ArenaScope gathered(scratch);
            const Tensor d_rows = sequence_parallel_.all_gather(d_stream, tp_rows, scratch);
            ops::linear_backward_input(backend_, d_rows, layer.down->weight, d_gated, false);
            if (trained_) ops::linear_backward_weight(backend_, d_rows, a.gated, layer.down->gradient);
        }
        ops::swiglu_backward(backend_, d_gated, a.gate_up, d_gate_up);
        column_parallel_backward(d_gate_up, *layer.gate_up, a.mlp_normed, d_normed);
        ops::rms_norm_backward(backend_, d_normed, a.residual, layer.mlp_norm->weight, a.mlp_rstd, d_stream,
                               layer.mlp_norm->gradient, true, scratch);
    }
    backend::ArenaScope scope(scratch);
    const Tensor d_attn_out = like(a.attn_out), d_q = like(a.attn_out),
                 d_k = scratch.allocate(type_, {rows, kv_heads_ * spec_.head_dim}), d_qkv = like(a.qkv);
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor d_rows = sequence_parallel_.all_gather(d_stream, tp_rows, scratch);
        ops::linear_backward_input(backend_, d_rows, layer.output->weight, d_attn_out, false);
        if (trained_) ops::linear_backward_weight(backend_, d_rows, a.attn_out, layer.output->gradient);
    }
    attention_.backward(a.attention, d_attn_out, a.attn_out, sequences, d_q, d_k, d_qkv, scratch);
    ops::head_norm_rotary_backward(backend_, d_q, d_k, a.qkv, layer.q_norm->weight, layer.k_norm->weight,
                                   sequences.cos, sequences.sin, a.head_rstd, d_qkv, layer.q_norm->gradient,
                                   layer.k_norm->gradient, scratch);
    const Tensor d_normed = scratch.allocate(type_, {local, width});
    column_parallel_backward(d_qkv, *layer.qkv, a.normed, d_normed);
    ops::rms_norm_backward(backend_, d_normed, a.input, layer.attention_norm->weight, a.rstd, d_stream,
                           layer.attention_norm->gradient, true, scratch);
}

}  // namespace maestro::model
