#include "model/vision.hpp"

#include "ops/dispatch.hpp"
#include "ops/gelu.hpp"
#include "ops/linear.hpp"
#include "ops/patchify.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

struct Vision::State final : Saved {
    Sequences sequences;
    StackActivations stack;
    Tensor patches;                       ///< [P, patch * patch * channels]
    Tensor normed, rstd, merged, active;  ///< normed [P, C], merged and active [P / merge^2, output width]
};

Vision::Vision(backend::Backend& backend, const ModelSpec& spec, const Role& role, Peers peers)
    : Module(backend, role, std::move(peers)),
      backend_(backend),
      spec_(spec),
      role_(role),
      patch_weight_(&store_.declare("patch.weight",
                                    {spec.width, std::int64_t{spec.patch} * spec.patch * spec.channels},
                                    Init::normal, role.trained)),
      patch_bias_(&store_.declare("patch.bias", {spec.width}, Init::zeros, role.trained)),
      layers_(backend, spec, role, false, store_),
      norm_(&store_.declare("norm.weight", {spec.width}, Init::ones, role.trained)),
      merge_weight_(&store_.declare("merger.weight",
                                    {role.output_width, std::int64_t{spec.width} * spec.merge * spec.merge},
                                    Init::normal, role.trained)),
      merge_bias_(&store_.declare("merger.bias", {role.output_width}, Init::zeros, role.trained)),
      project_weight_(&store_.declare("projector.weight", {role.output_width, role.output_width},
                                      Init::normal, role.trained)),
      project_bias_(&store_.declare("projector.bias", {role.output_width}, Init::zeros, role.trained)) {}

std::unique_ptr<Saved> Vision::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                       backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                       Result&) {
    MAESTRO_CHECK(inputs.empty(), "a vision section takes no edge, it has {}", inputs.size());
    auto state = std::make_unique<State>();
    auto& offsets = state->sequences.offsets;
    offsets.push_back(0);
    std::vector<std::int32_t> y, x;
    for (const SampleView& sample : batch.samples)
        for (const Picture& picture : sample.pictures) {
            ops::patch_positions(picture.height, picture.width, spec_.patch, spec_.merge, y, x);
            offsets.push_back(static_cast<std::int32_t>(y.size()));
        }
    const auto rows = static_cast<std::int64_t>(y.size());
    const DType type = role_.compute, statistics = ops::accumulate_type(type);
    state->patches = saved.allocate(type, {rows, std::int64_t{spec_.patch} * spec_.patch * spec_.channels});
    // All pictures of the micro-batch as one sequence of rows; offsets keep attention within each.
    std::size_t picture_index = 0;
    for (const SampleView& sample : batch.samples)
        for (const Picture& picture : sample.pictures) {
            ops::patchify(backend_, picture.pixels, picture.height, picture.width, spec_.channels,
                          spec_.patch, spec_.merge,
                          state->patches.slice(offsets[picture_index], offsets[picture_index + 1]));
            ++picture_index;
        }
    state->sequences.cos = saved.allocate(statistics, {rows, spec_.head_dim / 2});
    state->sequences.sin = saved.allocate(statistics, {rows, spec_.head_dim / 2});
    ops::fill_rotary_2d(backend_, y, x, spec_.rope_theta, state->sequences.cos, state->sequences.sin);

    // A convolution whose stride is its kernel is a product over patches.
    const Tensor stream = saved.allocate(type, {rows, spec_.width});
    ops::linear(backend_, state->patches, patch_weight_->weight, stream, patch_bias_->weight);
    state->stack = layers_.forward(stream, state->sequences, saved, scratch);

    state->normed = saved.allocate(type, {rows, spec_.width});
    state->rstd = saved.allocate(statistics, {rows});
    ops::rms_norm(backend_, state->stack.output, norm_->weight, state->normed, state->rstd, spec_.norm_eps);
    const std::int64_t unit = std::int64_t{spec_.merge} * spec_.merge, tokens = rows / unit;
    state->merged = saved.allocate(type, {tokens, role_.output_width});
    state->active = saved.allocate(type, {tokens, role_.output_width});
    output = saved.allocate(type, {tokens, role_.output_width});
    // patchify has put the merge x merge patches of a token one after another, so that merging them is only
    // another view of the rows.
    ops::linear(backend_, state->normed.reshape({tokens, unit * spec_.width}), merge_weight_->weight,
                state->merged, merge_bias_->weight);
    ops::gelu(backend_, state->merged, state->active);
    ops::linear(backend_, state->active, project_weight_->weight, output, project_bias_->weight);
    return state;
}

void Vision::backward(Saved& saved, const Tensor& d_output, std::span<const Tensor>,
                      backend::Arena& scratch) {
    auto& state = static_cast<State&>(saved);
    backend::ArenaScope scope(scratch);
    const DType type = role_.compute;
    const std::int64_t rows = state.patches.dim(0), unit = std::int64_t{spec_.merge} * spec_.merge,
                       tokens = rows / unit;
    const Tensor d_active = scratch.allocate(type, {tokens, role_.output_width});
    const Tensor d_merged = scratch.allocate(type, {tokens, role_.output_width});
    const Tensor d_normed = scratch.allocate(type, {rows, spec_.width});
    const Tensor d_stream = scratch.allocate(type, {rows, spec_.width});
    // Nothing lies upstream of the pictures: a vision section runs backward only to train, so every gradient
    // is wanted and none goes further than the patches.
    const Tensor blocks = state.normed.reshape({tokens, unit * spec_.width});
    ops::linear_backward_input(backend_, d_output, project_weight_->weight, d_active, false);
    ops::linear_backward_weight(backend_, d_output, state.active, project_weight_->gradient);
    ops::bias_backward(backend_, d_output, project_bias_->gradient);
    ops::gelu_backward(backend_, d_active, state.merged, d_merged);
    ops::linear_backward_input(backend_, d_merged, merge_weight_->weight,
                               d_normed.reshape({tokens, unit * spec_.width}), false);
    ops::linear_backward_weight(backend_, d_merged, blocks, merge_weight_->gradient);
    ops::bias_backward(backend_, d_merged, merge_bias_->gradient);
    ops::rms_norm_backward(backend_, d_normed, state.stack.output, norm_->weight, state.rstd, d_stream,
                           norm_->gradient, false);
    layers_.backward(state.stack, state.sequences, d_stream, scratch);
    ops::linear_backward_weight(backend_, d_stream, state.patches, patch_weight_->gradient);
    ops::bias_backward(backend_, d_stream, patch_bias_->gradient);
}

}  // namespace maestro::model
