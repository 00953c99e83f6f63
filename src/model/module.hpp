// The interface of a model section: forward over a micro-batch of samples, then backward.
//
// There is no autograd tape. Every module writes its backward pass explicitly and keeps exactly the
// activations that this pass reads, so that the memory of a micro-batch is known before the first step.
//
// Shape letters: T rows of a micro-batch on one cp rank, C model width, V vocabulary size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/arena.hpp"
#include "model/units.hpp"
#include "parallel/mesh.hpp"
#include "parallel/parameter_store.hpp"
#include "spec/edge_tensor.hpp"
#include "spec/item.hpp"
#include "spec/lora.hpp"
#include "spec/model_spec.hpp"
#include "spec/recompute.hpp"
#include "spec/tp_overlap.hpp"

namespace maestro::model {

/// An item in host memory: of a picture u8 pixels [height, width, channels]. Does not own them.
struct ItemView {
    const std::uint8_t* data = nullptr;
    Item item = {};
};

/// A sample as it is stored, with one marker token for each item. Does not own any data. weights[i] and
/// flags[i] describe token i as a prediction target: its loss weight, and in bit 0 of the flag whether it
/// counts for exact match.
struct SampleView {
    std::int64_t id = 0;
    std::span<const std::int32_t> tokens;
    std::span<const float> weights;
    std::span<const std::uint8_t> flags;
    std::span<const ItemView> items;  ///< in the order of their markers
};

/// The sizes of a sample, which the index of the sample file gives without reading its data.
struct SampleShape {
    std::int64_t tokens = 0;  ///< as stored: an item is one token
    std::vector<Item> items;
    double weight = 0;  ///< sum of the loss weights of its targets
    bool operator==(const SampleShape&) const = default;
};

/// One micro-batch.
struct Batch {
    std::span<const SampleView> samples;
    double loss_scale = 1;  ///< 1 / sum of the loss weights of the whole step
    std::int64_t step = 0;  ///< counted from 1; 0 outside of training
    bool train = true;      ///< false: compute the loss and exact match, but no gradients
    /// Where replicas share experts: the rows of the micro-batch in the residual stream of each rank of the
    /// lane, in their order. Empty: as many for every replica.
    std::span<const std::int64_t> lane_rows = {};
};

/// What a section reports about its micro-batches. Each rank of a replica reports a part; the sum over the
/// ranks is the result of the replica.
struct Result {
    double loss = 0;           ///< sum of weight * loss * loss_scale over the targets
    std::int64_t tokens = 0;   ///< tokens of the language model, picture tokens included
    std::int64_t answers = 0;  ///< evaluation: answers, each the flagged targets after an item
    std::int64_t exact = 0;    ///< evaluation: answers of which the arg-max predicts every token
};

/// One incoming edge of a section.
struct InputSpec {
    EdgeTensor tensor = EdgeTensor::embeddings;
    ModelSpec from;             ///< the upstream model
    bool gradient = true;       ///< of its rows; false: what backward() writes there is not read
    Units units = Units(from);  ///< of an encoder: which markers its rows replace
    bool operator==(const InputSpec&) const = default;
};

/// Returns the number of elements in a row that the edge delivers to a section of `width`. Of embeddings that
/// is the embedding, and behind it what is added after the first layers.
inline int row_width(const InputSpec& input, int width) {
    if (input.tensor == EdgeTensor::hidden) return input.from.width;
    const bool embeddings = input.tensor == EdgeTensor::embeddings;
    return embeddings ? width * (1 + static_cast<int>(input.from.deepstack.size())) : width;
}

/// The part of a model that a pipeline stage holds: consecutive layers. The first stage also has what stands
/// before the layers (the embedding), the last one what stands after them (final norm and head, or merger).
/// Every stage but the last outputs its residual stream, and every stage but the first has that of the stage
/// before as an input of EdgeTensor::stream. By default the only stage, which holds the whole model.
struct Stage {
    int index = 0, count = 1;
    int first_layer = 0;
    int layers = 0;  ///< 0: all that follow first_layer
    /// Of a later stage of a language section: the encoders that feed the first stage, which expand markers.
    /// Only the first stage has their edges among its inputs.
    std::vector<Units> expansions = {};

    bool first() const { return index == 0; }
    bool last() const { return index + 1 == count; }
    bool operator==(const Stage&) const = default;
};

/// A term of the loss of a section. The loss of a target is the sum of the terms, each times its weight.
struct LossTerm {
    enum class Kind {
        cross_entropy,  ///< -log q of the target, q the distribution that the section predicts
        /// temperature^2 * KL(p || q), with p predicted by a teacher, and both softened by the temperature
        forward_kl,
    } kind = Kind::cross_entropy;
    int edge = -1;  ///< of a divergence: which of Role::inputs delivers the teacher's hidden states
    double weight = 1;
    double temperature = 1;  ///< of a divergence
    bool has_teacher() const { return edge >= 0; }
    bool operator==(const LossTerm&) const = default;
};
/// Their names in metrics.h5, by LossTerm::Kind, of at most 16 bytes.
inline constexpr std::array kLossNames = {"cross_entropy", "forward_kl"};
static_assert(kLossNames.size() == static_cast<std::size_t>(LossTerm::Kind::forward_kl) + 1);

/// This rank's part of what a term of the loss adds up to. The sum over all ranks is that of the section.
struct LossSum {
    const char* term;  ///< its name in metrics.h5
    double value;
};

/// What a section, or one stage of it, does with its model.
struct Role {
    std::string section;
    std::vector<InputSpec> inputs;
    bool emits = false;    ///< the section has an outgoing edge
    int output_width = 0;  ///< row width of that edge
    /// Of the loss that the last stage of a language section without an outgoing edge computes, each with a
    /// weight above 0. A training step minimizes their sum; an evaluation computes cross entropy alone.
    std::vector<LossTerm> loss_terms = {};
    bool trained = true;  ///< all parameters but those of `frozen`
    parallel::FrozenParameters frozen = {};
    bool needs_backward = true;
    Markers markers = {};
    std::uint64_t seed = 0;
    DType compute = DType::f32;
    Recompute recompute = Recompute::none;
    int recompute_layers = 0;  ///< the first layers of the stage, to which it applies; 0: all
    TpOverlap tp_overlap = TpOverlap::automatic;
    Stage stage = {};
    Lora lora = {};  ///< adapters of the linear layers of attention and MLP
    bool computes_loss() const { return !loss_terms.empty(); }
    bool operator==(const Role&) const = default;
};

/// Whether the gradient of an input is wanted.
bool wants_input_gradient(const Role& role);

/// How often each expert of a layer was chosen by rows of this rank.
struct ExpertLoad {
    int layer = 0;                      ///< of the model
    std::vector<std::int64_t> choices;  ///< [E]
    /// The trainable bias of the router, which balances the experts; null: none.
    const parallel::Parameter* bias = nullptr;
};

/// Bytes of host memory beside samples and tensors: what a micro-batch keeps from forward to backward, and
/// what a task needs meanwhile.
struct HostBytes {
    std::size_t saved = 0, scratch = 0;
};

/// What a module keeps on the host between forward and backward. The tensors themselves are in the arena.
struct Saved {
    virtual ~Saved() = default;
};

/// A model section on one rank of a replica. Owns its parameters and its mesh; the backend outlives it.
class Module {
public:
    virtual ~Module() = default;
    parallel::ParameterStore& parameters() { return store_; }
    const parallel::ParameterStore& parameters() const { return store_; }
    const parallel::Mesh& mesh() const { return mesh_; }

    /// Builds the device's attention plans for micro-batches of up to `sequences` sequences, with any of
    /// these lengths (in rows). Called before the first step; a plan that is still missing then is built at
    /// its first use, which takes about a second.
    virtual void prepare(std::span<const std::int64_t> rows, std::int64_t sequences) {
        static_cast<void>(rows), static_cast<void>(sequences);
    }
    /// Runs the section over a micro-batch. Collective over the replica: all ranks call it with the same
    /// batch, and each holds some of the rows (parallel::Partition).
    ///
    /// inputs[e][i] holds the rows [n, row_width] that input edge e delivers for sample i, in the order in
    /// which this rank holds them; n may be 0. Everything that backward() reads is allocated in `saved` and
    /// in the returned object; the caller releases `scratch`. Where the role emits, `output` is set to
    /// the rows [n, output width] of the samples, concatenated, in `saved`; on every stage but the last, to
    /// the residual stream [local, C].
    ///
    /// Where the role computes the loss, forward() also adds the gradients of the head (language.hpp says
    /// why), and the loss is accumulated on the device until collect(). Throws Error(broken_invariant) for
    /// inputs that do not fit the batch.
    virtual std::unique_ptr<Saved> forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                           backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                           Result& result) = 0;
    /// Adds to `result` the losses that forward() has accumulated on the device since the last call. Waits
    /// for the device, so it is called once at the end of a step or of an evaluation.
    virtual void collect(Result& result) { static_cast<void>(result); }
    /// The terms of the losses that the last collect() has found, in training: of each, the sum over the
    /// targets of weight * loss_scale * term, without the weight of the term. Beside the terms of the role,
    /// "balance": the loss that balances experts, of the layers of this stage that have had a backward pass.
    virtual std::vector<LossSum> loss_sums() const { return {}; }
    /// Returns the loads of layers with experts since the last call, counted by backward().
    virtual std::vector<ExpertLoad> take_expert_loads() { return {}; }
    /// Adds the gradients of the weights for the micro-batch of `saved`. `d_output` is the gradient of the
    /// output, or absent (rank 0) where none comes back over the outgoing edge. d_inputs[e], unless absent,
    /// receives the gradient [rows, row_width] of all rows of input edge e, in sample order. Collective over
    /// the replica.
    virtual void backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                          backend::Arena& scratch) = 0;
    /// Returns, by input edge and sample, how many of the edge's rows belong to this rank.
    virtual std::vector<std::vector<std::int64_t>> input_rows(const Batch& batch) const {
        static_cast<void>(batch);
        return {};
    }
    /// Returns the memory by which layers with experts plan where rows go, for the micro-batch whose forward
    /// returned this.
    virtual HostBytes host_bytes(const Saved& saved) const {
        static_cast<void>(saved);
        return {};
    }
    /// Makes the module assume, on the meta backend, the micro-batch that needs most memory among those with
    /// the same lengths, wherever the items and targets are within its samples.
    virtual void assume_worst_case() {}

protected:
    Module(backend::Backend& backend, const Role& role, parallel::Mesh mesh)
        : mesh_(std::move(mesh)),
          store_(backend, mesh_, role.section, role.seed, role.compute, role.frozen) {}
    parallel::Mesh mesh_;
    parallel::ParameterStore store_;
};

/// Whether make_module() initializes the weights at random, or leaves zeros because they are loaded from a
/// file.
enum class InitialWeights { drawn, zeros };

/// Builds the module that spec.kind names and allocates its parameters. The backend outlives it. Throws
/// Error(bad_deck, all_ranks) for sizes that do not fit together.
std::unique_ptr<Module> make_module(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                                    parallel::Mesh mesh = parallel::single_rank_mesh(),
                                    InitialWeights weights = InitialWeights::drawn);

/// Memory and work of one micro-batch on one rank.
struct Footprint {
    std::size_t saved = 0;         ///< bytes of activations kept from forward to backward
    std::size_t scratch = 0;       ///< peak bytes of temporary memory within a task
    std::size_t parameters = 0;    ///< bytes of weights and gradients
    std::size_t gradients = 0;     ///< the part of these for gradients
    std::int64_t optimizer = 0;    ///< weights whose optimizer states this rank keeps, padding included
    std::size_t frozen_shard = 0;  ///< bytes of this rank's shard of the frozen weights, padding included
    std::size_t sync_scratch = 0;  ///< bytes of temporary memory for sums of gradients, beside that of tasks
    HostBytes host = {};
    double forward_flops = 0;
    double backward_flops = 0;
    double forward_s = 0;  ///< seconds, by the rates of the device and the links of the mesh
    double backward_s = 0;
    collective::Traffic tp = {}, cp = {}, ep = {};  ///< sent along these axes, forward and backward together
    /// What a pass has used when it comes to a layer of the parameter store.
    struct Mark {
        bool passed = false;  ///< the pass has come to the layer
        /// See backend::Counts; what is sent along tp, cp and ep comes on top.
        double until_wait_s = 0, device_s = 0, host_s = 0, sent_s = 0;
        double flops = 0;
        std::size_t saved = 0;                         ///< bytes of activations
        std::array<collective::Traffic, 3> sent = {};  ///< along tp, cp and ep, by both passes together
        double seconds() const { return until_wait_s + std::max(device_s, host_s) + sent_s; }
    };
    /// By layer of the store, see ParameterStore::begin_layer(): when a forward is about to use its weights,
    /// and when a backward has finished its gradients. Layer 0, which is left to the caller of a pass, has
    /// none.
    std::vector<Mark> forward_marks = {}, backward_marks = {};
    Mark forward_end = {}, backward_end = {};
    /// By trainable group of parameters: the first layer of which it has some.
    std::vector<int> group_layers = {};

    /// Seconds from the beginning of a forward until it needs the weights of a trainable group.
    double needed_s(std::size_t group) const {
        const int layer = group_layers[group];
        return layer == 0 ? 0 : forward_marks[static_cast<std::size_t>(layer)].seconds();
    }
    /// Seconds from the beginning of a backward until the gradients of a trainable group are final.
    double final_s(std::size_t group) const {
        const Mark& mark = backward_marks[static_cast<std::size_t>(group_layers[group])];
        return mark.passed ? mark.seconds() : backward_s;
    }
};

struct MeasureOptions {
    bool train = true;                         ///< false: measure an evaluation
    backend::DeviceRates rates = {};           ///< of the device that the model will run on
    backend::Traits traits = {};               ///< of the same device
    bool worst_case = false;                   ///< see Module::assume_worst_case()
    std::vector<std::int64_t> lane_rows = {};  ///< Batch::lane_rows
    /// Measured over predicted seconds of what the device computes, forward and backward.
    std::array<double, 2> factors = {1, 1};
    bool operator==(const MeasureOptions&) const = default;
};
/// Returns the footprint of a micro-batch of samples of these shapes. Runs the module's own code on the meta
/// backend, so whatever the code allocates or computes is what is counted.
Footprint measure(const ModelSpec& spec, const Role& role, std::span<const SampleShape> samples,
                  const MeasureOptions& options = {}, parallel::Mesh mesh = parallel::single_rank_mesh());
/// Sets the members of a footprint that follow from the parameters alone, on a rank of this mesh: bytes of
/// weights, gradients and shards, and the layers of groups.
void measure_parameters(const ModelSpec& spec, const Role& role, backend::Traits traits, parallel::Mesh mesh,
                        Footprint& footprint);

}  // namespace maestro::model
