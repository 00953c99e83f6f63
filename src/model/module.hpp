// What a section computes: forward over a micro-batch of samples, then backward. Explicit, without a tape:
// every module knows its gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/arena.hpp"
#include "base/edge_tensor.hpp"
#include "base/picture_size.hpp"
#include "parallel/mesh.hpp"
#include "parallel/parameter_store.hpp"

namespace maestro::model {

/// Pixels in host memory, [height, width, channels]; not owned.
struct Picture {
    const std::uint8_t* pixels = nullptr;
    int height = 0;
    int width = 0;
};

/// A sample as stored: one marker token a picture. weights[i] and flags[i] belong to token i as a target; bit
/// 0 of a flag: the token counts for exact match. Owns nothing.
struct SampleView {
    std::int64_t id = 0;
    std::span<const std::int32_t> tokens;
    std::span<const float> weights;
    std::span<const std::uint8_t> flags;
    std::span<const Picture> pictures;
};

/// What is known of a sample without its data.
struct SampleShape {
    std::int64_t tokens = 0;  ///< stored
    std::vector<PictureSize> pictures;
    double weight = 0;  ///< sum of the loss weights of its targets
};

/// How a vision section cuts pictures: patches of `patch` pixels, merge x merge of them to one token. patch
/// 0: none.
struct Geometry {
    int patch = 0;
    int merge = 0;
};

/// Tokens that a picture becomes in the language model.
std::int64_t picture_tokens(int height, int width, Geometry geometry);
/// Tokens of a sample once every marker is its picture's tokens (patch 0: a marker stays one token).
std::int64_t expanded_tokens(const SampleShape& shape, Geometry geometry);

/// A micro-batch.
struct Batch {
    std::span<const SampleView> samples;
    double loss_scale = 1;  ///< 1 / sum of the loss weights of the whole step
    std::int64_t step = 0;  ///< counted from 1; 0 outside of training
    bool train = true;      ///< false: loss and exact match alone, without gradients
};

struct Result {
    double loss = 0;          ///< sum of weight * loss * loss_scale; of a lane: over its ranks, as the next
    std::int64_t tokens = 0;  ///< tokens of the language model, picture tokens included
    std::int64_t names = 0;   ///< runs of flagged targets
    std::int64_t exact = 0;   ///< of these, how many the arg-max gives whole
};

/// The sizes of a model; a plain copy of the deck's [model.NAME].
struct ModelSpec {
    enum class Kind { vision, language } kind = Kind::language;
    std::string name;
    int layers = 1;
    int width = 64;
    int heads = 1;
    int kv_heads = 1;
    int head_dim = 64;
    int mlp = 128;
    int vocabulary = 0;  ///< language
    double rope_theta = 10000;
    double norm_eps = 1e-6;
    bool tie_embeddings = true;  ///< language
    int patch = 0;               ///< vision, as the next two
    int merge = 1;
    int channels = 1;
};

struct InputSpec {
    EdgeTensor tensor = EdgeTensor::embeddings;
    ModelSpec from;  ///< the upstream model
};

/// Elements of a row that the edge brings to a section of `width`.
inline int row_width(const InputSpec& input, int width) {
    return input.tensor == EdgeTensor::embeddings ? width : input.from.width;
}

/// What a section does with its model.
struct Role {
    std::string section;
    std::vector<InputSpec> inputs;
    bool emits = false;    ///< has an outgoing edge
    int output_width = 0;  ///< of that edge (the language model's width for a vision section)
    bool loss = false;     ///< computes the loss (a language section without an outgoing edge)
    bool trained = true;
    bool needs_backward = true;
    int marker = -1;   ///< token that stands for a picture
    double alpha = 0;  ///< of distillation: share of the KL term
    double temperature = 1;
    std::uint64_t seed = 0;
    DType compute = DType::f32;
    bool recompute = false;  ///< keep only the layers' inputs and redo them in backward
};

/// What a module keeps between forward and backward besides the tensors in the arena.
struct Saved {
    virtual ~Saved() = default;
};

class Module {
public:
    virtual ~Module() = default;
    parallel::ParameterStore& parameters() { return store_; }
    const parallel::ParameterStore& parameters() const { return store_; }
    const parallel::Mesh& mesh() const { return mesh_; }

    /// Before the first step: builds the device's plans for attention over sequences of these lengths (rows),
    /// any of which a micro-batch may have. What is missing is built when it is first used.
    virtual void prepare(std::span<const std::int64_t> rows) { static_cast<void>(rows); }
    /// Every rank of the replica runs the same micro-batch at the same time and holds some of its rows, see
    /// parallel::Partition. inputs[e][i]: the rows that input edge e brings for sample i, in the order in
    /// which this rank holds them, perhaps none. What backward needs goes to `saved` and into the result;
    /// `scratch` is free again on return. `output` is set where the role emits: the rows of the samples one
    /// after another, in `saved`. Where the role has a loss, the head's gradients are added here already (see
    /// language.hpp), and the loss is summed on the device until collect().
    virtual std::unique_ptr<Saved> forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                           backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                           Result& result) = 0;
    /// Adds to `result` what forward has summed on the device since the last call, and waits until it is
    /// there: at the end of a step, or of an evaluation.
    virtual void collect(Result& result) { static_cast<void>(result); }
    /// Adds to the gradients of the weights. d_output is absent where no gradient comes back. d_inputs[e],
    /// the gradient of all rows of input edge e in sample order, [rows, width], is written unless absent.
    virtual void backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                          backend::Arena& scratch) = 0;
    /// By input edge, by sample: how many of the rows that the edge brings this rank holds.
    virtual std::vector<std::vector<std::int64_t>> input_rows(const Batch& batch) const {
        static_cast<void>(batch);
        return {};
    }
    /// On the meta backend: count the memory of the micro-batch that needs most among those of the same
    /// lengths, wherever in its samples the pictures and the targets of the loss stand.
    virtual void assume_worst_case() {}
    /// Called after the section's gradients were summed, and after its weights were updated, with the time at
    /// which that began (seconds of a steady clock). An emulated module sleeps here.
    virtual void gradients_summed(double began_s) { static_cast<void>(began_s); }
    virtual void weights_updated(double began_s) { static_cast<void>(began_s); }

protected:
    Module(backend::Backend& backend, const Role& role, parallel::Mesh mesh)
        : mesh_(std::move(mesh)), store_(backend, mesh_, role.section, role.seed, role.compute) {}
    parallel::Mesh mesh_;
    parallel::ParameterStore store_;
};

/// Whether make_module() draws initial weights, or leaves zeros because the weights come from a file.
enum class InitialWeights { drawn, zeros };

/// Throws Error(bad_deck, all_ranks) for sizes that do not fit together.
std::unique_ptr<Module> make_module(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                                    parallel::Mesh mesh = parallel::single_rank_mesh(),
                                    InitialWeights weights = InitialWeights::drawn);

/// Memory and work of one micro-batch on one rank.
struct Footprint {
    std::size_t saved = 0;           ///< bytes kept from forward to backward
    std::size_t scratch = 0;         ///< bytes used within a task
    std::size_t parameters = 0;      ///< bytes of weights and gradients
    std::int64_t optimizer = 0;      ///< weights whose optimizer states the rank keeps, padding included
    std::size_t reduce_scratch = 0;  ///< bytes used while gradients are summed
    double forward_flops = 0;
    double backward_flops = 0;
    double forward_s = 0;  ///< by the device's rates, and of collectives by the mesh's links
    double backward_s = 0;
    collective::Traffic tp = {}, cp = {};  ///< what the rank sends along these axes, forward and backward
};

struct MeasureOptions {
    bool train = true;                ///< false: as in an evaluation
    backend::DeviceRates rates = {};  ///< of the device that the model is to run on, as the next
    backend::Traits traits = {};
    bool worst_case = false;  ///< see Module::assume_worst_case()
};
/// Runs the module's own code on the meta backend, over a micro-batch of such samples.
Footprint measure(const ModelSpec& spec, const Role& role, std::span<const SampleShape> samples,
                  const MeasureOptions& options = {}, parallel::Mesh mesh = parallel::single_rank_mesh());

}  // namespace maestro::model
