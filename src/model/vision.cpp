#include "model/vision.hpp"

#include <array>
#include <utility>

#include "backend/host_access.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/gelu.hpp"
#include "ops/linear.hpp"
#include "ops/patchify.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

/// All pictures of a micro-batch, patch after patch.
struct Vision::PackedPictures {
    std::vector<const Picture*> pictures;
    std::vector<std::int64_t> lengths;  ///< patches of each picture
    std::vector<std::int32_t> y, x;     ///< by patch: its row and column in the picture
};

/// This rank's part of a micro-batch, with what backward() reads.
struct Vision::State final : Saved {
    explicit State(parallel::Sequences s) : sequences(std::move(s)) {}
    parallel::Sequences sequences;
    std::vector<std::int64_t> tp_token_rows;  ///< tokens of each tp rank of the slice
    std::int64_t local_rows = 0;
    StackActivations stack;
    Tensor patches;            ///< [local, patch^2 * channels]
    Tensor normed;             ///< [local, C]
    Norm::Statistics norm;     ///< [local]
    Tensor merged, activated;  ///< [P / merge^2, this rank's part of O]: before and after GELU
};

Vision::Vision(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh)
    : Module(backend, role, std::move(mesh)),
      backend_(backend),
      spec_(spec),
      role_(role),
      patches_per_token_(std::int64_t{spec.merge} * spec.merge),
      rotary_(ops::rotary_2d(spec.head_dim, spec.rope_theta)),
      sequence_parallel_(backend, mesh_.tp()),
      patch_weight_(role.stage.first()
                        ? &store_.declare("patch.weight",
                                          {spec.width, std::int64_t{spec.patch} * spec.patch * spec.channels},
                                          parallel::Init::normal, role.trained)
                        : nullptr),
      patch_bias_(role.stage.first()
                      ? &store_.declare("patch.bias", {spec.width}, parallel::Init::zeros, role.trained)
                      : nullptr),
      layers_(backend, spec, role, mesh_, store_) {
    const bool stream = role.inputs.size() == 1 && role.inputs[0].tensor == EdgeTensor::stream;
    MAESTRO_CHECK(role.stage.first() ? role.inputs.empty() : stream,
                  "stage {} of {} has {} inputs, the first of which is {} residual stream", role.stage.index,
                  role.section, role.inputs.size(), stream ? "a" : "no");
    if (!role.stage.last()) return;
    merger_layer_ = store_.begin_layer();
    norm_.emplace(backend, spec.form.norm, spec.norm_eps, store_, "norm", spec.width, role.trained);
    const std::int64_t out = role.output_width, merged = patches_per_token_ * spec.width;
    const Range part = mesh_.tp_part(out);
    merge_weight_ = &store_.declare("merger.weight", {out, merged}, parallel::Init::normal, role.trained,
                                    {{part}}, {0, merged});
    merge_bias_ =
        &store_.declare("merger.bias", {out}, parallel::Init::zeros, role.trained, {{part}}, {0, 1});
    project_weight_ = &store_.declare("projector.weight", {out, out}, parallel::Init::normal, role.trained,
                                      {{{0, out}}}, part);
    project_bias_ = &store_.declare("projector.bias", {out}, parallel::Init::zeros, role.trained);
}

Vision::PackedPictures Vision::pack(const Batch& batch) const {
    PackedPictures packed;
    for (const SampleView& sample : batch.samples)
        for (const Picture& picture : sample.pictures) {
            const std::size_t before = packed.y.size();
            ops::patch_positions(picture.height, picture.width, spec_.patch, spec_.merge, packed.y, packed.x);
            packed.lengths.push_back(static_cast<std::int64_t>(packed.y.size() - before));
            packed.pictures.push_back(&picture);
        }
    return packed;
}

parallel::Sequences Vision::sequences_of(const PackedPictures& packed) const {
    // A picture is a sequence: attention stays within it. No token is divided between ranks, because its
    // patches are merged on one of them.
    constexpr auto kMask = parallel::AttentionMask::bidirectional;
    return {parallel::Partition(packed.lengths, kMask, mesh_.degrees(), patches_per_token_), kMask, mesh_};
}

std::vector<std::vector<std::int64_t>> Vision::input_rows(const Batch& batch) const {
    if (role_.stage.first()) return {};
    std::vector<std::size_t> sample_of;  // by picture
    for (std::size_t s = 0; s < batch.samples.size(); ++s)
        sample_of.insert(sample_of.end(), batch.samples[s].pictures.size(), s);
    std::vector<std::int64_t> rows(batch.samples.size(), 0);
    for (const parallel::RowRange& range :
         sequences_of(pack(batch)).partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank()))
        rows[sample_of[range.sequence]] += range.count;
    return {rows};
}

void Vision::cut_patches(const PackedPictures& packed, State& state, backend::Arena& kept,
                         backend::Arena& scratch) const {
    state.patches = kept.allocate(
        role_.compute, {state.local_rows, std::int64_t{spec_.patch} * spec_.patch * spec_.channels});
    std::int64_t local_row = 0;
    for (const parallel::RowRange& range :
         state.sequences.partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank())) {
        // One picture at a time: on a GPU its pixels are copied to scratch memory, which the next one reuses.
        const backend::ArenaScope scope(scratch);
        const Picture& picture = *packed.pictures[range.sequence];
        const std::span pixels(picture.pixels,
                               static_cast<std::size_t>(picture.height) * picture.width * spec_.channels);
        ops::patchify(backend_, backend::to_device(backend_, pixels, scratch), picture.height, picture.width,
                      spec_.channels, spec_.patch, spec_.merge, range.first,
                      state.patches.slice(local_row, local_row + range.count));
        local_row += range.count;
    }
}

void Vision::set_positions(const PackedPictures& packed, State& state, backend::Arena& kept,
                           backend::Arena& scratch) const {
    parallel::Sequences& sequences = state.sequences;
    const parallel::Partition& partition = sequences.partition;
    const DType statistics = ops::accumulate_type(role_.compute);
    // Other samples may have more and smaller pictures.
    sequences.copy_to_device(backend_, role_.needs_backward, partition.rows() / patches_per_token_, kept);
    sequences.cos = kept.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    sequences.sin = kept.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    // The tables cover all rows of the slice, not only those of this rank: rows are gathered before queries
    // and keys are computed and rotated.
    const auto slice = partition.slice(mesh_.cp_rank());
    const backend::ArenaScope scope(scratch);
    const std::vector<std::int32_t> y = parallel::pick(packed.y, slice, partition.offsets()),
                                    x = parallel::pick(packed.x, slice, partition.offsets());
    const std::array positions = {backend::to_device(backend_, y, scratch),
                                  backend::to_device(backend_, x, scratch)};
    ops::fill_rotary(backend_, positions, rotary_, sequences.cos, sequences.sin);
}

void Vision::merge_and_project(State& state, const Tensor& output, backend::Arena& kept,
                               backend::Arena& scratch) const {
    const std::int64_t tokens = state.sequences.rows / patches_per_token_,
                       columns = merge_weight_->shard.row_count();
    const std::span<const std::int64_t> tp_rows = state.tp_token_rows;
    state.merged = kept.allocate(role_.compute, {tokens, columns});
    state.activated = kept.allocate(role_.compute, {tokens, columns});
    const backend::ArenaScope scope(scratch);
    // The merger is column-parallel and the projector row-parallel, as the two GEMMs of a Megatron MLP: the
    // activation between them stays on its rank.
    ops::linear_gelu(backend_, sequence_parallel_.all_gather(as_tokens(state.normed), tp_rows, scratch),
                     merge_weight_->weight, merge_bias_->weight, state.merged, state.activated,
                     ops::GeluForm::tanh);
    const Tensor partial = sequence_parallel_.rows_of_all(output, tp_rows, scratch);
    ops::linear(backend_, state.activated, project_weight_->weight, partial);
    sequence_parallel_.reduce_scatter(partial, output, tp_rows, scratch);
    // After the sum over the ranks, so that the bias is added once.
    ops::add_bias(backend_, project_bias_->weight, output);
}

std::unique_ptr<Saved> Vision::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                       backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                       Result&) {
    MAESTRO_CHECK(inputs.size() == role_.inputs.size(), "{} inputs of a stage of a vision section, not {}",
                  inputs.size(), role_.inputs.size());
    const PackedPictures packed = pack(batch);
    auto state = std::make_unique<State>(sequences_of(packed));
    for (const std::int64_t rows : state->sequences.tp_rows)
        state->tp_token_rows.push_back(rows / patches_per_token_);
    state->local_rows = state->sequences.tp_rows[static_cast<std::size_t>(mesh_.tp_rank())];
    const DType type = role_.compute;
    // A frozen encoder has no backward pass, which is the only reader of everything but the output: its
    // activations live in scratch memory and are overwritten by the next task.
    backend::Arena& kept = role_.needs_backward ? saved : scratch;
    if (role_.stage.first()) cut_patches(packed, *state, kept, scratch);
    set_positions(packed, *state, kept, scratch);

    Tensor stream;
    if (role_.stage.first()) {
        // A convolution whose stride equals its kernel size is a linear layer over patches.
        stream = kept.allocate(type, {state->local_rows, spec_.width});
        ops::linear(backend_, state->patches, patch_weight_->weight, stream, patch_bias_->weight);
    } else {
        stream = layers_.receive(inputs.front(), state->local_rows, kept);
    }
    state->stack = layers_.forward(stream, state->sequences, kept, scratch);
    if (!role_.stage.last()) {
        output = layers_.send(state->stack, saved);
        return state;
    }

    store_.layer_needed(merger_layer_);
    state->normed = kept.allocate(type, {state->local_rows, spec_.width});
    state->norm = norm_->allocate(state->local_rows, type, kept);
    norm_->forward(state->stack.output, state->normed, state->norm);
    output = saved.allocate(type, {state->local_rows / patches_per_token_, role_.output_width});
    merge_and_project(*state, output, kept, scratch);
    return state;
}

void Vision::merge_backward(State& state, const Tensor& d_output, const Tensor& d_stream,
                            backend::Arena& scratch) const {
    const DType type = role_.compute;
    const std::span<const std::int64_t> tp_rows = state.tp_token_rows;
    const std::int64_t tokens = state.merged.dim(0);
    const Tensor d_activated = scratch.allocate(type, {tokens, state.activated.columns()});
    const Tensor d_merged = scratch.allocate(type, {tokens, state.merged.columns()});
    const Tensor d_normed = scratch.allocate(type, {state.local_rows, spec_.width});
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor d_rows = sequence_parallel_.all_gather(d_output, tp_rows, scratch);
        ops::linear_backward_input(backend_, d_rows, project_weight_->weight, d_activated, false);
        ops::linear_backward_weight(backend_, d_rows, state.activated, project_weight_->gradient);
    }
    // Every tp rank has a copy of this bias and adds the gradient of its local rows only. The sum over the
    // copies is taken at the end of the step (parallel/parameter_group.hpp).
    ops::bias_backward(backend_, d_output, project_bias_->gradient, scratch);
    ops::gelu_backward(backend_, d_activated, state.merged, d_merged, ops::GeluForm::tanh);
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor partial = sequence_parallel_.rows_of_all(as_tokens(d_normed), tp_rows, scratch);
        ops::linear_backward_input(backend_, d_merged, merge_weight_->weight, partial, false);
        ops::linear_backward_weight(backend_, d_merged,
                                    sequence_parallel_.all_gather(as_tokens(state.normed), tp_rows, scratch),
                                    merge_weight_->gradient, merge_bias_->gradient, scratch);
        sequence_parallel_.reduce_scatter(partial, as_tokens(d_normed), tp_rows, scratch);
    }
    norm_->backward(d_normed, state.stack.output, state.norm, d_stream, false, scratch);
}

void Vision::backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                      backend::Arena& scratch) {
    auto& state = static_cast<State&>(saved);
    const backend::ArenaScope scope(scratch);
    // A vision section has no upstream section. It runs backward only to train, so all weight gradients are
    // needed, and the gradient of the patches is not.
    const bool first = role_.stage.first();
    const Tensor d_stream =
        first ? scratch.allocate(role_.compute, {state.local_rows, spec_.width}) : d_inputs.front();
    if (role_.stage.last()) {
        merge_backward(state, d_output, d_stream, scratch);
        store_.layer_final(merger_layer_);
    } else {
        ops::convert(backend_, d_output, d_stream);
    }
    layers_.backward(state.stack, state.sequences, d_stream, scratch);
    if (first)
        ops::linear_backward_weight(backend_, d_stream, state.patches, patch_weight_->gradient,
                                    patch_bias_->gradient, scratch);
}

}  // namespace maestro::model
