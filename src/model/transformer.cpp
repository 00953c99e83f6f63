#include "model/transformer.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "ops/elementwise.hpp"

namespace maestro::model {

namespace {

bool any_trainable(const parallel::ParameterStore& store, std::size_t from) {
    const auto& parameters = store.parameters();
    return std::any_of(parameters.begin() + static_cast<std::ptrdiff_t>(from), parameters.end(),
                       [](const parallel::Parameter& p) { return p.trainable; });
}

}  // namespace

Transformer::Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                         const parallel::Mesh& mesh, parallel::ParameterStore& store,
                         const AfterDeclaration& after_declaration)
    : backend_(backend), store_(store), spec_(spec), type_(role.compute) {
    const int first = role.stage.first_layer,
              count = role.stage.layers > 0 ? role.stage.layers : spec.layers - first;
    MAESTRO_CHECK(first >= 0 && count > 0 && first + count <= spec.layers,
                  "stage {} of {} has layers {} to {} of {}", role.stage.index, role.section, first,
                  first + count - 1, spec.layers);
    bool trained = any_trainable(store, 0) || wants_input_gradient(role);
    for (int i = first; i < first + count; ++i) {
        const int number = store.begin_layer();
        const std::size_t declared = store.parameters().size();
        const std::string prefix = "layers." + std::to_string(i) + ".";
        Mixer mixer(backend, spec, role, mesh, store, prefix, spec.mixer(i));
        FeedForward mlp(backend, spec, role, mesh, store, prefix, i);
        const std::size_t form = form_of(spec.mixer_index(i));
        layers_.push_back({std::move(mixer), std::move(mlp), i, number, form, forms_[form].layers++});
        trained = trained || any_trainable(store, declared);
        if (!trained) ++first_backward_;
        const std::size_t after = store.parameters().size();
        if (after_declaration) after_declaration(i);
        layers_.back().trained_after = any_trainable(store, after);
    }
    if (!role.needs_backward) first_backward_ = layers_.size() + 1;
    for (std::size_t i = first_backward_; i < layers_.size(); ++i) {
        const bool recomputes =
            role.recompute_layers == 0 || i < static_cast<std::size_t>(role.recompute_layers);
        layers_[i].checkpointing = !recomputes || role.recompute == Recompute::none ? Checkpointing::keep_all
                                   : role.recompute == Recompute::layer ? Checkpointing::keep_layer_inputs
                                                                        : Checkpointing::keep_costly;
    }
}

std::size_t Transformer::form_of(int of_model) {
    const auto known = std::find_if(forms_.begin(), forms_.end(),
                                    [&](const Form& form) { return form.of_model == of_model; });
    const auto index = static_cast<std::size_t>(known - forms_.begin());
    if (known == forms_.end()) forms_.push_back({of_model, layers_.size()});
    return index;
}

void Transformer::prepare(std::span<const std::int64_t> rows, std::int64_t sequences,
                          parallel::AttentionMask mask, bool backward) const {
    for (const Form& form : forms_) layers_[form.first].mixer.prepare(rows, sequences, mask, backward);
}

std::vector<MixerTables> Transformer::tables(const parallel::Sequences& sequences,
                                             std::span<const std::vector<std::int32_t>> positions,
                                             backend::Arena& kept, backend::Arena& scratch) const {
    std::vector<MixerTables> tables;
    tables.reserve(forms_.size());
    for (const Form& form : forms_)
        tables.push_back(layers_[form.first].mixer.tables(sequences, positions, kept, scratch));
    return tables;
}

LayerActivations Transformer::layer_forward(const Layer& layer, const Tensor& input, const Tensor& output,
                                            const parallel::Sequences& sequences, const MixerTables& tables,
                                            backend::Arena& saved, backend::Arena& scratch) const {
    const bool keep_costly = layer.checkpointing == Checkpointing::keep_costly;
    backend::Arena& passing = keep_costly ? scratch : saved;
    LayerActivations a{.input = input};
    a.mixer = layer.mixer.allocate(input, sequences, saved, passing);
    const Tensor residual = saved.allocate(type_, {input.dim(0), spec_.width});
    layer.mixer.forward(a.mixer, residual, sequences, tables, scratch);
    if (recorded_) layer.mixer.record(a.mixer, recorded_rows_, layer.of_form, recorded_->of(layer.form));
    a.mlp = layer.mlp.allocate(residual, sequences, saved, passing);
    layer.mlp.forward(a.mlp, output, sequences, scratch);
    if (keep_costly) {
        layer.mixer.discard_cheap(a.mixer);
        layer.mlp.discard_cheap(a.mlp);
    }
    return a;
}

StackActivations Transformer::forward(const Tensor& input, const parallel::Sequences& sequences,
                                      std::span<const MixerTables> tables, backend::Arena& saved,
                                      backend::Arena& scratch, const AtLayer& after) const {
    StackActivations stack;
    Tensor stream = input;
    const auto allocate_stream = [&](backend::Arena& arena) {
        return arena.allocate(type_, {input.dim(0), spec_.width});
    };
    // Where no backward pass follows, two residual streams take turns, and each layer's activations overwrite
    // those of the layer before: the memory of frozen layers does not grow with their number.
    std::array<Tensor, 2> passing;
    if (first_backward_ > 1) passing = {allocate_stream(scratch), allocate_stream(scratch)};
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        store_.layer_needed(layer.number);
        // It is the input of the next layer, or of what follows the layers.
        const Tensor output =
            i + 1 >= first_backward_ || layer.trained_after ? allocate_stream(saved) : passing[i % 2];
        const backend::ArenaScope scope(scratch);
        if (layer.checkpointing == Checkpointing::keep_nothing ||
            layer.checkpointing == Checkpointing::keep_layer_inputs) {
            layer_forward(layer, stream, output, sequences, tables[layer.form], scratch, scratch);
            stack.layers.push_back({.input = stream});
        } else {
            stack.layers.push_back(
                layer_forward(layer, stream, output, sequences, tables[layer.form], saved, scratch));
        }
        stream = output;
        if (after) after(layer.index, stream);
    }
    stack.output = stream;
    return stack;
}

std::vector<ExpertLoad> Transformer::take_expert_loads() const {
    std::vector<ExpertLoad> loads;
    for (const Layer& layer : layers_)
        if (std::optional<ExpertLoad> load = layer.mlp.take_load(layer.index))
            loads.push_back(std::move(*load));
    return loads;
}

HostBytes Transformer::host_bytes(const parallel::Sequences& sequences) const {
    HostBytes bytes;
    for (const Layer& layer : layers_) {
        const HostBytes of_layer = layer.mlp.host_bytes(sequences);
        if (layer.checkpointing == Checkpointing::keep_costly ||
            layer.checkpointing == Checkpointing::keep_all)
            bytes.saved += of_layer.saved;
        bytes.scratch = std::max(bytes.scratch, of_layer.scratch);
    }
    return bytes;
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
    if (first_backward_ <= layers_.size()) return stack.output;
    const Tensor output = saved.allocate(type_, {stack.output.dim(0), spec_.width});
    ops::convert(backend_, stack.output, output);
    return output;
}

void Transformer::backward(StackActivations& stack, const parallel::Sequences& sequences,
                           std::span<const MixerTables> tables, const Tensor& d_stream,
                           backend::Arena& scratch, const AtLayer& before) const {
    for (std::size_t i = layers_.size(); i-- > 0;) {
        if (before && (i + 1 >= first_backward_ || layers_[i].trained_after))
            before(layers_[i].index, d_stream);
        if (i < first_backward_) continue;
        const backend::ArenaScope scope(scratch);
        const MixerTables& of_form = tables[layers_[i].form];
        LayerActivations recomputed;
        const bool recomputes = layers_[i].checkpointing == Checkpointing::keep_layer_inputs;
        if (recomputes) {
            // The recomputed output is not read: only the activations within the layer are needed.
            const Tensor output = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            recomputed = layer_forward(layers_[i], stack.layers[i].input, output, sequences, of_form, scratch,
                                       scratch);
        }
        const LayerActivations& a = recomputes ? recomputed : stack.layers[i];
        // d_stream passes through both residual connections unchanged, and the backward pass of each norm
        // adds the gradient of its branch. The scratch memory of the MLP is free again before the mixer
        // allocates its own, so that a layer needs the larger of the two and not their sum.
        layers_[i].mlp.backward(a.mlp, d_stream, sequences, scratch);
        layers_[i].mixer.backward(a.mixer, d_stream, sequences, of_form, scratch);
        store_.layer_final(layers_[i].number);
    }
}

}  // namespace maestro::model
