#include "model/transformer.hpp"

#include <utility>

#include "ops/elementwise.hpp"

namespace maestro::model {

Transformer::Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                         const parallel::Mesh& mesh, parallel::ParameterStore& store,
                         const AfterDeclaration& declared)
    : backend_(backend),
      store_(store),
      spec_(spec),
      type_(role.compute),
      checkpointing_(!role.needs_backward                 ? Checkpointing::keep_nothing
                     : role.recompute == Recompute::layer ? Checkpointing::keep_layer_inputs
                     : role.recompute == Recompute::cheap ? Checkpointing::keep_costly
                                                          : Checkpointing::keep_all) {
    const int first = role.stage.first_layer,
              count = role.stage.layers > 0 ? role.stage.layers : spec.layers - first;
    MAESTRO_CHECK(first >= 0 && count > 0 && first + count <= spec.layers,
                  "stage {} of {} has layers {} to {} of {}", role.stage.index, role.section, first,
                  first + count - 1, spec.layers);
    for (int i = first; i < first + count; ++i) {
        const int number = store.begin_layer();
        const std::string prefix = "layers." + std::to_string(i) + ".";
        AttentionBlock attention(backend, spec, role, mesh, store, prefix);
        MlpBlock mlp(backend, spec, role, mesh, store, prefix);
        layers_.push_back({std::move(attention), std::move(mlp), i, number});
        if (declared) declared(i);
    }
}

void Transformer::prepare(std::span<const std::int64_t> rows, std::int64_t sequences,
                          parallel::AttentionMask mask, bool backward) const {
    layers_.front().attention.prepare(rows, sequences, mask, backward);  // the same for all layers
}

LayerActivations Transformer::layer_forward(const Layer& layer, const Tensor& input, const Tensor& output,
                                            const parallel::Sequences& sequences, backend::Arena& saved,
                                            backend::Arena& scratch) const {
    const bool keep_costly = checkpointing_ == Checkpointing::keep_costly;
    backend::Arena& passing = keep_costly ? scratch : saved;
    LayerActivations a;
    a.attention = layer.attention.allocate(input, sequences, saved, passing);
    const Tensor residual = saved.allocate(type_, {input.dim(0), spec_.width});
    layer.attention.forward(a.attention, residual, sequences, scratch);
    if (recorded_)
        recorded_->write(&layer - layers_.data(), a.attention.attention.k.slice(0, recorded_rows_),
                         a.attention.qkv.slice(0, recorded_rows_));
    a.mlp = layer.mlp.allocate(residual, sequences, saved, passing);
    layer.mlp.forward(a.mlp, output, sequences, scratch);
    if (keep_costly) {
        layer.attention.discard_cheap(a.attention);
        layer.mlp.discard_cheap(a.mlp);
    }
    return a;
}

StackActivations Transformer::forward(const Tensor& input, const parallel::Sequences& sequences,
                                      backend::Arena& saved, backend::Arena& scratch,
                                      const AtLayer& after) const {
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
            if (after) after(layers_[i].index, stream);
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
            stack.layers.back().attention.input = stream;
        } else {
            stack.layers.push_back(layer_forward(layer, stream, output, sequences, saved, scratch));
        }
        stream = output;
        if (after) after(layer.index, stream);
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
                           const Tensor& d_stream, backend::Arena& scratch, const AtLayer& before) const {
    for (std::size_t i = layers_.size(); i-- > 0;) {
        if (before) before(layers_[i].index, d_stream);
        const backend::ArenaScope scope(scratch);
        LayerActivations recomputed;
        if (checkpointing_ == Checkpointing::keep_layer_inputs) {
            // The recomputed output is not read: only the activations within the layer are needed.
            const Tensor output = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            recomputed = layer_forward(layers_[i], stack.layers[i].attention.input, output, sequences,
                                       scratch, scratch);
        }
        const LayerActivations& a =
            checkpointing_ == Checkpointing::keep_layer_inputs ? recomputed : stack.layers[i];
        // d_stream passes through both residual connections unchanged, and the backward pass of each norm
        // adds the gradient of its branch. The scratch memory of the MLP is free again before attention
        // allocates its own, so that a layer needs the larger of the two and not their sum.
        layers_[i].mlp.backward(a.mlp, d_stream, sequences, scratch);
        layers_[i].attention.backward(a.attention, d_stream, sequences, scratch);
        store_.layer_final(layers_[i].number);
    }
}

}  // namespace maestro::model
