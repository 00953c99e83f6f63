#include "model/transformer.hpp"

#include <cstring>

#include "ops/attention.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"
#include "ops/swiglu.hpp"

namespace maestro::model {

Transformer::Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role, bool causal,
                         ParameterStore& store)
    : backend_(backend),
      spec_(spec),
      type_(role.compute),
      causal_(causal),
      recompute_(role.recompute),
      trained_(role.trained) {
    const std::int64_t heads = std::int64_t{spec.heads} * spec.head_dim,
                       keys = std::int64_t{spec.kv_heads} * spec.head_dim;
    for (int i = 0; i < spec.layers; ++i) {
        const auto declare = [&](const char* name, std::vector<std::int64_t> shape, Init init) {
            return &store.declare("layers." + std::to_string(i) + "." + name, std::move(shape), init,
                                  role.trained);
        };
        layers_.push_back({
            .attention_norm = declare("attention.norm.weight", {spec.width}, Init::ones),
            // Queries, keys and values by one product, and gate and up by another: the input is read once,
            // and one wide product runs faster than three narrow ones.
            .qkv = declare("attention.qkv.weight", {heads + 2 * keys, spec.width}, Init::normal),
            .q_norm = declare("attention.q_norm.weight", {spec.head_dim}, Init::ones),
            .k_norm = declare("attention.k_norm.weight", {spec.head_dim}, Init::ones),
            .output = declare("attention.output.weight", {spec.width, heads}, Init::residual),
            .mlp_norm = declare("mlp.norm.weight", {spec.width}, Init::ones),
            .gate_up = declare("mlp.gate_up.weight", {2 * std::int64_t{spec.mlp}, spec.width}, Init::normal),
            .down = declare("mlp.down.weight", {spec.width, spec.mlp}, Init::residual),
        });
    }
}

LayerActivations Transformer::run(const Layer& layer, const Tensor& input, const Tensor& output,
                                  const Sequences& sequences, backend::Arena& saved,
                                  backend::Arena& scratch) const {
    const std::int64_t rows = input.dim(0), width = spec_.width, dim = spec_.head_dim;
    const DType statistics = ops::accumulate_type(type_);
    const std::int64_t heads = spec_.heads, keys = spec_.kv_heads;
    LayerActivations a;
    a.input = input;
    a.normed = saved.allocate(type_, {rows, width});
    a.rstd = saved.allocate(statistics, {rows});
    a.qkv = saved.allocate(type_, {rows, (heads + 2 * keys) * dim});
    a.q = saved.allocate(type_, {rows, heads * dim});
    a.k = saved.allocate(type_, {rows, keys * dim});
    a.head_rstd = saved.allocate(statistics, {rows, heads + keys});
    a.mixed = saved.allocate(type_, {rows, heads * dim});
    a.lse = saved.allocate(statistics, {rows, heads});
    a.middle = saved.allocate(type_, {rows, width});
    a.mlp_normed = saved.allocate(type_, {rows, width});
    a.mlp_rstd = saved.allocate(statistics, {rows});
    a.gate_up = saved.allocate(type_, {rows, 2 * std::int64_t{spec_.mlp}});
    a.gated = saved.allocate(type_, {rows, spec_.mlp});

    ops::rms_norm(backend_, input, layer.attention_norm->weight, a.normed, a.rstd, spec_.norm_eps);
    ops::linear(backend_, a.normed, layer.qkv->weight, a.qkv);
    ops::head_norm_rotary(backend_, a.qkv, layer.q_norm->weight, layer.k_norm->weight, sequences.cos,
                          sequences.sin, a.q, a.k, a.head_rstd, spec_.norm_eps);
    ops::attention(backend_, a.q, a.k, a.qkv, sequences.offsets, causal_, a.mixed, a.lse, scratch);
    // The residual: the product adds to a copy of its input, so that in bf16 the sum is rounded once.
    ops::convert(backend_, input, a.middle);
    ops::linear_accumulate(backend_, a.mixed, layer.output->weight, a.middle);

    ops::rms_norm(backend_, a.middle, layer.mlp_norm->weight, a.mlp_normed, a.mlp_rstd, spec_.norm_eps);
    ops::linear(backend_, a.mlp_normed, layer.gate_up->weight, a.gate_up);
    ops::swiglu(backend_, a.gate_up, a.gated);
    ops::convert(backend_, a.middle, output);
    ops::linear_accumulate(backend_, a.gated, layer.down->weight, output);
    return a;
}

StackActivations Transformer::forward(const Tensor& input, const Sequences& sequences, backend::Arena& saved,
                                      backend::Arena& scratch) const {
    StackActivations stack;
    Tensor stream = input;
    for (const Layer& layer : layers_) {
        const Tensor output = saved.allocate(type_, {input.dim(0), spec_.width});
        if (recompute_) {  // what the layer keeps goes to scratch, where the next layer overwrites it
            backend::ArenaScope scope(scratch);
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

void Transformer::backward(StackActivations& stack, const Sequences& sequences, const Tensor& d_stream,
                           backend::Arena& scratch) const {
    for (std::size_t i = layers_.size(); i-- > 0;) {
        backend::ArenaScope scope(scratch);
        if (recompute_) {
            // The layer's output again, which nobody reads: run() needs a place for it.
            const Tensor again = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            const LayerActivations a =
                run(layers_[i], stack.layers[i].input, again, sequences, scratch, scratch);
            run_back(layers_[i], a, sequences, d_stream, scratch);
        } else {
            run_back(layers_[i], stack.layers[i], sequences, d_stream, scratch);
        }
    }
}

void Transformer::run_back(const Layer& layer, const LayerActivations& a, const Sequences& sequences,
                           const Tensor& d_stream, backend::Arena& scratch) const {
    const std::int64_t rows = d_stream.dim(0), width = spec_.width;
    // d_stream passes both residuals unchanged; each norm's backward adds its branch's part to it in place.
    // The MLP's scratch is given back before attention's is taken, so a layer needs the larger, not the sum.
    const auto like = [&](const Tensor& t) { return scratch.allocate(type_, {rows, t.columns()}); };
    {
        backend::ArenaScope scope(scratch);
        const Tensor d_gated = like(a.gated), d_gate_up = like(a.gate_up),
                     d_normed = scratch.allocate(type_, {rows, width});
        ops::linear_backward_input(backend_, d_stream, layer.down->weight, d_gated, false);
        if (trained_) ops::linear_backward_weight(backend_, d_stream, a.gated, layer.down->gradient);
        ops::swiglu_backward(backend_, d_gated, a.gate_up, d_gate_up);
        ops::linear_backward_input(backend_, d_gate_up, layer.gate_up->weight, d_normed, false);
        if (trained_) ops::linear_backward_weight(backend_, d_gate_up, a.mlp_normed, layer.gate_up->gradient);
        ops::rms_norm_backward(backend_, d_normed, a.middle, layer.mlp_norm->weight, a.mlp_rstd, d_stream,
                               layer.mlp_norm->gradient, true);
    }
    backend::ArenaScope scope(scratch);
    const Tensor d_mixed = like(a.mixed), d_q = like(a.q), d_k = like(a.k), d_qkv = like(a.qkv);
    ops::linear_backward_input(backend_, d_stream, layer.output->weight, d_mixed, false);
    if (trained_) ops::linear_backward_weight(backend_, d_stream, a.mixed, layer.output->gradient);
    ops::attention_backward(backend_, d_mixed, a.mixed, a.q, a.k, a.qkv, a.lse, sequences.offsets, causal_,
                            d_q, d_k, d_qkv, scratch);
    ops::head_norm_rotary_backward(backend_, d_q, d_k, a.qkv, layer.q_norm->weight, layer.k_norm->weight,
                                   sequences.cos, sequences.sin, a.head_rstd, d_qkv, layer.q_norm->gradient,
                                   layer.k_norm->gradient);
    const Tensor d_normed = scratch.allocate(type_, {rows, width});
    ops::linear_backward_input(backend_, d_qkv, layer.qkv->weight, d_normed, false);
    if (trained_) ops::linear_backward_weight(backend_, d_qkv, a.normed, layer.qkv->gradient);
    ops::rms_norm_backward(backend_, d_normed, a.input, layer.attention_norm->weight, a.rstd, d_stream,
                           layer.attention_norm->gradient, true);
}

}  // namespace maestro::model
