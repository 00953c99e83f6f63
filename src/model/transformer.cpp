#include "model/transformer.hpp"

#include <algorithm>
#include <array>

#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"
#include "ops/swiglu.hpp"

namespace maestro::model {

namespace {

/// Part of `size` channels, in ranges of `unit`, that a tp rank holds.
Range part_in(std::int64_t size, std::int64_t unit, const parallel::Peers& peers) {
    const Range part = peers.tp_part(size / unit);
    return {part.begin * unit, part.end * unit};
}

Range moved(const Range& range, std::int64_t by) {
    return {range.begin + by, range.end + by};
}

}  // namespace

Transformer::Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                         const parallel::Peers& peers, parallel::ParameterStore& store)
    : backend_(backend),
      spec_(spec),
      type_(role.compute),
      recompute_(role.recompute),
      trained_(role.trained),
      heads_(spec.heads / peers.degrees.tp),
      key_heads_(std::max(spec.kv_heads / peers.degrees.tp, 1)),
      mlp_(part_in(spec.mlp, 1, peers).size()),
      shares_(backend, *peers.tensor),
      attention_(backend, peers, role.compute, spec.head_dim) {
    const std::int64_t dim = spec.head_dim, width = spec.width;
    const std::int64_t all_heads = spec.heads * dim, all_keys = spec.kv_heads * dim;
    const Range heads = part_in(all_heads, dim, peers), mlp = part_in(spec.mlp, 1, peers);
    // Ranks beyond the key heads hold one each, several the same.
    const std::int64_t first_key = std::int64_t{peers.tp()} * spec.kv_heads / peers.degrees.tp * dim;
    const Range keys{first_key, first_key + key_heads_ * dim};
    const bool shared = peers.keys->size() > 1;
    for (int i = 0; i < spec.layers; ++i) {
        const auto name = [&](const char* rest) { return "layers." + std::to_string(i) + "." + rest; };
        const auto whole_one = [&](const char* rest, std::int64_t size) {
            return &store.declare(name(rest), {size}, parallel::Init::ones, role.trained);
        };
        const auto matrix = [&](const char* rest, std::vector<std::int64_t> shape, parallel::Init init,
                                Shard shard, Range common = {}) {
            return &store.declare(name(rest), std::move(shape), init, role.trained, std::move(shard),
                                  common.size() > 0 ? parallel::Sharing::keys : parallel::Sharing::none,
                                  common);
        };
        layers_.push_back({
            .attention_norm = whole_one("attention.norm.weight", width),
            // Queries, keys and values by one product, and gate and up by another: the input is read once,
            // and one wide product runs faster than three narrow ones.
            .qkv = matrix(
                "attention.qkv.weight", {all_heads + 2 * all_keys, width}, parallel::Init::normal,
                make_shard(std::array{heads, moved(keys, all_heads), moved(keys, all_heads + all_keys)},
                           {0, width}),
                shared ? Range{heads.size() * width, (heads.size() + 2 * keys.size()) * width} : Range{}),
            .q_norm = whole_one("attention.q_norm.weight", dim),
            .k_norm = whole_one("attention.k_norm.weight", dim),
            .output = matrix("attention.output.weight", {width, all_heads}, parallel::Init::residual,
                             {{{0, width}}, heads}),
            .mlp_norm = whole_one("mlp.norm.weight", width),
            .gate_up =
                matrix("mlp.gate_up.weight", {2 * std::int64_t{spec.mlp}, width}, parallel::Init::normal,
                       make_shard(std::array{mlp, moved(mlp, spec.mlp)}, {0, width})),
            .down =
                matrix("mlp.down.weight", {width, spec.mlp}, parallel::Init::residual, {{{0, width}}, mlp}),
        });
    }
}

void Transformer::prepare(std::span<const std::int64_t> rows, parallel::Attention attention,
                          bool backward) const {
    attention_.prepare(rows, attention, heads_, key_heads_, false);
    if (backward) attention_.prepare(rows, attention, heads_, key_heads_, true);
}

LayerActivations Transformer::run(const Layer& layer, const Tensor& input, const Tensor& output,
                                  const parallel::Sequences& sequences, backend::Arena& saved,
                                  backend::Arena& scratch) const {
    const std::int64_t own = input.dim(0), rows = sequences.rows, width = spec_.width, dim = spec_.head_dim;
    const DType statistics = ops::accumulate_type(type_);
    const std::span<const std::int64_t> shares = sequences.shares;
    LayerActivations a;
    a.input = input;
    a.normed = saved.allocate(type_, {own, width});
    a.rstd = saved.allocate(statistics, {own});
    a.qkv = saved.allocate(type_, {rows, (heads_ + 2 * key_heads_) * dim});
    a.head_rstd = saved.allocate(statistics, {rows, heads_ + key_heads_});
    a.attention = attention_.allocate(sequences, heads_, key_heads_, saved);
    a.mixed = saved.allocate(type_, {rows, heads_ * dim});
    a.middle = saved.allocate(type_, {own, width});
    a.mlp_normed = saved.allocate(type_, {own, width});
    a.mlp_rstd = saved.allocate(statistics, {own});
    a.gate_up = saved.allocate(type_, {rows, 2 * mlp_});
    a.gated = saved.allocate(type_, {rows, mlp_});

    ops::rms_norm(backend_, input, layer.attention_norm->weight, a.normed, a.rstd, spec_.norm_eps);
    {
        const backend::ArenaScope scope(scratch);
        ops::linear(backend_, shares_.gather(a.normed, shares, scratch), layer.qkv->weight, a.qkv);
    }
    {
        const backend::ArenaScope scope(scratch);
        const bool apart = attention_.gathers();
        const Tensor q = apart ? scratch.allocate(type_, {rows, heads_ * dim}) : a.attention.q,
                     k = apart ? scratch.allocate(type_, {rows, key_heads_ * dim}) : a.attention.k;
        ops::head_norm_rotary(backend_, a.qkv, layer.q_norm->weight, layer.k_norm->weight, sequences.cos,
                              sequences.sin, q, k, a.head_rstd, spec_.norm_eps);
        attention_.forward(a.attention, q, k, a.qkv, sequences, a.mixed, scratch);
    }
    // The residual: the product adds to a copy of its input, so that in bf16 the sum is rounded once (of
    // several tp ranks each part is rounded, too).
    ops::convert(backend_, input, a.middle);
    shares_.add_product(a.mixed, layer.output->weight, a.middle, shares, scratch);

    ops::rms_norm(backend_, a.middle, layer.mlp_norm->weight, a.mlp_normed, a.mlp_rstd, spec_.norm_eps);
    {
        const backend::ArenaScope scope(scratch);
        ops::linear(backend_, shares_.gather(a.mlp_normed, shares, scratch), layer.gate_up->weight,
                    a.gate_up);
    }
    ops::swiglu(backend_, a.gate_up, a.gated);
    ops::convert(backend_, a.middle, output);
    shares_.add_product(a.gated, layer.down->weight, output, shares, scratch);
    return a;
}

StackActivations Transformer::forward(const Tensor& input, const parallel::Sequences& sequences,
                                      backend::Arena& saved, backend::Arena& scratch) const {
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

void Transformer::backward(StackActivations& stack, const parallel::Sequences& sequences,
                           const Tensor& d_stream, backend::Arena& scratch) const {
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

void Transformer::run_back(const Layer& layer, const LayerActivations& a,
                           const parallel::Sequences& sequences, const Tensor& d_stream,
                           backend::Arena& scratch) const {
    const std::int64_t own = d_stream.dim(0), rows = sequences.rows, width = spec_.width;
    const std::span<const std::int64_t> shares = sequences.shares;
    // d_stream passes both residuals unchanged; each norm's backward adds its branch's part to it in place.
    // The MLP's scratch is given back before attention's is taken, so a layer needs the larger, not the sum.
    const auto like = [&](const Tensor& t) { return scratch.allocate(type_, {rows, t.columns()}); };
    // The gradient of a product's input from those of its outputs, which the tp ranks share out, and of its
    // weights, for which the input is gathered again: kept, it would take the memory that shares save.
    const auto through = [&](const Tensor& d_output, const parallel::Parameter& weight, const Tensor& input,
                             const Tensor& d_input) {
        const backend::ArenaScope scope(scratch);
        const Tensor part = shares_.part(d_input, shares, scratch);
        ops::linear_backward_input(backend_, d_output, weight.weight, part, false);
        if (trained_)
            ops::linear_backward_weight(backend_, d_output, shares_.gather(input, shares, scratch),
                                        weight.gradient);
        shares_.sum(part, d_input, shares, scratch);
    };
    {
        backend::ArenaScope scope(scratch);
        const Tensor d_gated = like(a.gated), d_gate_up = like(a.gate_up),
                     d_normed = scratch.allocate(type_, {own, width});
        {
            const backend::ArenaScope gathered(scratch);
            const Tensor d_rows = shares_.gather(d_stream, shares, scratch);
            ops::linear_backward_input(backend_, d_rows, layer.down->weight, d_gated, false);
            if (trained_) ops::linear_backward_weight(backend_, d_rows, a.gated, layer.down->gradient);
        }
        ops::swiglu_backward(backend_, d_gated, a.gate_up, d_gate_up);
        through(d_gate_up, *layer.gate_up, a.mlp_normed, d_normed);
        ops::rms_norm_backward(backend_, d_normed, a.middle, layer.mlp_norm->weight, a.mlp_rstd, d_stream,
                               layer.mlp_norm->gradient, true, scratch);
    }
    backend::ArenaScope scope(scratch);
    const Tensor d_mixed = like(a.mixed), d_q = like(a.mixed),
                 d_k = scratch.allocate(type_, {rows, key_heads_ * spec_.head_dim}), d_qkv = like(a.qkv);
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor d_rows = shares_.gather(d_stream, shares, scratch);
        ops::linear_backward_input(backend_, d_rows, layer.output->weight, d_mixed, false);
        if (trained_) ops::linear_backward_weight(backend_, d_rows, a.mixed, layer.output->gradient);
    }
    attention_.backward(a.attention, d_mixed, a.mixed, sequences, d_q, d_k, d_qkv, scratch);
    ops::head_norm_rotary_backward(backend_, d_q, d_k, a.qkv, layer.q_norm->weight, layer.k_norm->weight,
                                   sequences.cos, sequences.sin, a.head_rstd, d_qkv, layer.q_norm->gradient,
                                   layer.k_norm->gradient, scratch);
    const Tensor d_normed = scratch.allocate(type_, {own, width});
    through(d_qkv, *layer.qkv, a.normed, d_normed);
    ops::rms_norm_backward(backend_, d_normed, a.input, layer.attention_norm->weight, a.rstd, d_stream,
                           layer.attention_norm->gradient, true, scratch);
}

}  // namespace maestro::model
