// A stack of pre-norm transformer layers with rotary positions over packed sequences, for vision and language
// models. Norms, biases and the MLP are those of the model's LayerForm.
//
// Shape letters: T rows of this cp rank's slice, `local` of them held by this rank between the GEMMs
// (sequence parallelism, see language.hpp), C model width, H query heads, K KV heads and D channels a head.
// H, K and the MLP channels F are this tp rank's part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "model/feed_forward.hpp"
#include "model/mixer.hpp"

namespace maestro::model {

/// Activations of one layer that its backward pass reads.
struct LayerActivations {
    Tensor input;  ///< [local, C]: the residual stream
    MixerActivations mixer = {};
    FeedForwardActivations mlp = {};
};

struct StackActivations {
    std::vector<LayerActivations> layers;
    Tensor output;  ///< [local, C]: the residual stream after the last layer
};

/// What the mixers of a stage keep of a sequence, to compute its next row alone: by form, as the tables.
class DecodingState {
public:
    explicit DecodingState(std::vector<MixerState> forms) : forms_(std::move(forms)) {}
    std::int64_t length() const { return length_; }  ///< rows that every layer has seen
    void clear();
    /// To be called after each layer has seen so many rows more.
    void add_rows(std::int64_t rows);
    /// To be called before the layers compute one more row.
    void begin_row(backend::Arena& scratch);
    MixerState& of(std::size_t form) { return forms_[form]; }

private:
    std::vector<MixerState> forms_;
    std::int64_t length_ = 0;
};

class Transformer {
public:
    /// Called with the number of a layer within the model.
    using AfterDeclaration = std::function<void(int layer)>;
    /// Called with the residual stream[local, C] after that layer, or with its gradient. May change it.
    using AtLayer = std::function<void(int layer, const Tensor& stream)>;

    /// Declares the parameters "layers.N.*" of the role's stage in `store`, numbered within the model; each
    /// tp rank holds a part of the heads and of the MLP channels. Backend, mesh and store outlive the
    /// transformer. `after_declaration` may declare further parameters, which are used after the layer.
    Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                const parallel::Mesh& mesh, parallel::ParameterStore& store,
                const AfterDeclaration& after_declaration = {});

    /// Makes what the mixers read of a micro-batch, in `kept`: by form, in the order of the stage's layers.
    /// It must stay where it is until the last backward(). positions[axis][slice row]: see ModelKind::rotary.
    std::vector<MixerTables> tables(const parallel::Sequences& sequences,
                                    std::span<const std::vector<std::int32_t>> positions,
                                    backend::Arena& kept, backend::Arena& scratch) const;
    /// Runs all layers on input[local, C], which must stay until backward() if keeps_input(). Collective over
    /// the replica, like backward(). Where the role needs no backward pass nothing is saved: all memory comes
    /// from `scratch`, and the output remains valid until the caller releases it.
    /// `after` is called after each layer.
    StackActivations forward(const Tensor& input, const parallel::Sequences& sequences,
                             std::span<const MixerTables> tables, backend::Arena& saved,
                             backend::Arena& scratch, const AtLayer& after = {}) const;
    /// Turns d_stream[local, C], the gradient of the output, into the gradient of the input, in place, and
    /// adds the gradients of the weights. Ends at the first layer that has a backward pass: unless
    /// keeps_input(), d_stream is then the gradient of that layer's input.
    /// `before` is called before the backward pass of each of these layers and of the one before them, and
    /// for each layer that is followed by something trained, for which d_stream is then not complete.
    void backward(StackActivations& activations, const parallel::Sequences& sequences,
                  std::span<const MixerTables> tables, const Tensor& d_stream, backend::Arena& scratch,
                  const AtLayer& before = {}) const;

    /// See Module.
    std::vector<ExpertLoad> take_expert_loads() const;
    HostBytes host_bytes(const parallel::Sequences& sequences) const;
    /// Returns an empty state with room for so many rows, in `arena`.
    DecodingState make_state(std::int64_t rows, backend::Arena& arena) const;
    /// From now on forward() also adds the first `rows` rows to the layers of `state`; null: no longer.
    void record(DecodingState* state, std::int64_t rows) {
        recorded_ = state;
        recorded_rows_ = rows;
    }
    /// Runs all layers on one row, input[local, C], that follows those of the state, to which it is added.
    /// The output lies in `scratch` (decode.cpp). Collective over the replica.
    Tensor decode(const Tensor& input, const parallel::Sequences& sequences,
                  std::span<const MixerTables> tables, DecodingState& state, backend::Arena& scratch) const;
    /// Whether all layers have a backward pass: what stands before them is trained or wants its gradient.
    bool keeps_input() const { return first_backward_ == 0; }

    /// Returns the stream that the stage before has delivered, as a tensor [local, C] in `arena`. inputs[i]
    /// has this rank's rows of sample i, which lie in the stream one sample after another.
    Tensor receive(std::span<const Tensor> inputs, std::int64_t local, backend::Arena& arena) const;
    /// Returns the output of a stage that is not the last one, in `saved`.
    Tensor send(const StackActivations& activations, backend::Arena& saved) const;

    /// Builds the device's plans for micro-batches of up to `sequences` sequences of these lengths, in rows.
    void prepare(std::span<const std::int64_t> rows, std::int64_t sequences, parallel::AttentionMask mask,
                 bool backward) const;

private:
    /// What the forward pass of a layer keeps: nothing, its input (activation checkpointing: backward runs
    /// the layer again), what takes long to compute again (selective checkpointing), or all activations.
    enum class Checkpointing { keep_nothing, keep_layer_inputs, keep_costly, keep_all };
    struct Layer {
        Mixer mixer;
        FeedForward mlp;
        int index;             ///< within the model
        int number;            ///< among the layers of the parameter store
        std::size_t form;      ///< of the mixer, an index into forms_
        std::int64_t of_form;  ///< how many layers before it have the same
        /// Whether something is trained that branches off the stream after the layer.
        bool trained_after = false;
        Checkpointing checkpointing = Checkpointing::keep_nothing;
    };
    /// A form of mixers that the stage has.
    struct Form {
        int of_model;             ///< its index in ModelSpec::mixers
        std::size_t first;        ///< the first of layers_ that has it
        std::int64_t layers = 0;  ///< that have it
    };
    /// Returns the index in forms_ of a form of the model, which becomes one of the stage's.
    std::size_t form_of(int of_model);
    /// Writes output[local, C] and returns the layer's activations, allocated in `saved`. With
    /// Checkpointing::keep_costly, `scratch` remains occupied by those that it does not return.
    LayerActivations layer_forward(const Layer& layer, const Tensor& input, const Tensor& output,
                                   const parallel::Sequences& sequences, const MixerTables& tables,
                                   backend::Arena& saved, backend::Arena& scratch) const;

    backend::Backend& backend_;
    const parallel::ParameterStore& store_;
    ModelSpec spec_;
    DType type_;
    std::vector<Layer> layers_;
    std::vector<Form> forms_;
    DecodingState* recorded_ = nullptr;  ///< null: forward() records nothing
    std::int64_t recorded_rows_ = 0;
    /// The first layer with a backward pass. The number of layers if only what follows them has one, and one
    /// more if the role has no backward pass.
    std::size_t first_backward_ = 0;
};

}  // namespace maestro::model
