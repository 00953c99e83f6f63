#include "model/vision.hpp"

#include <utility>

#include "backend/host_access.hpp"
#include "ops/dispatch.hpp"
#include "ops/gelu.hpp"
#include "ops/linear.hpp"
#include "ops/patchify.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

struct Vision::State final : Saved {
    explicit State(parallel::Sequences s) : sequences(std::move(s)) {}
    parallel::Sequences sequences;
    std::vector<std::int64_t> token_rows;  ///< output rows of each tp rank of the slice
    StackActivations stack;
    Tensor patches;         ///< [local, patch * patch * channels]
    Tensor normed, rstd;    ///< [local, C]
    Tensor merged, active;  ///< [P / merge^2, some of the output width], P patches of the slice
};

Vision::Vision(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh)
    : Module(backend, role, std::move(mesh)),
      backend_(backend),
      spec_(spec),
      role_(role),
      sequence_parallel_(backend, mesh_.tp()),
      patch_weight_(&store_.declare("patch.weight",
                                    {spec.width, std::int64_t{spec.patch} * spec.patch * spec.channels},
                                    parallel::Init::normal, role.trained)),
      patch_bias_(&store_.declare("patch.bias", {spec.width}, parallel::Init::zeros, role.trained)),
      layers_(backend, spec, role, mesh_, store_),
      norm_(&store_.declare("norm.weight", {spec.width}, parallel::Init::ones, role.trained)) {
    const std::int64_t out = role.output_width, merged = std::int64_t{spec.width} * spec.merge * spec.merge;
    const Range part = mesh_.tp_part(out);
    merge_weight_ = &store_.declare("merger.weight", {out, merged}, parallel::Init::normal, role.trained,
                                    {{part}}, {0, merged});
    merge_bias_ =
        &store_.declare("merger.bias", {out}, parallel::Init::zeros, role.trained, {{part}}, {0, 1});
    project_weight_ = &store_.declare("projector.weight", {out, out}, parallel::Init::normal, role.trained,
                                      {{{0, out}}}, part);
    project_bias_ = &store_.declare("projector.bias", {out}, parallel::Init::zeros, role.trained);
}

std::unique_ptr<Saved> Vision::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                       backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                       Result&) {
    MAESTRO_CHECK(inputs.empty(), "a vision section takes no edge, it has {}", inputs.size());
    const std::int64_t unit = std::int64_t{spec_.merge} * spec_.merge;
    std::vector<std::int32_t> y, x;  // of all patches of the micro-batch
    std::vector<std::int64_t> lengths;
    std::vector<const Picture*> pictures;
    for (const SampleView& sample : batch.samples)
        for (const Picture& picture : sample.pictures) {
            const std::size_t before = y.size();
            ops::patch_positions(picture.height, picture.width, spec_.patch, spec_.merge, y, x);
            lengths.push_back(static_cast<std::int64_t>(y.size() - before));
            pictures.push_back(&picture);
        }
    // All pictures of the micro-batch as one sequence of rows; attention stays within each.
    auto state = std::make_unique<State>(parallel::Sequences(
        parallel::Partition(lengths, parallel::AttentionMask::bidirectional, mesh_.degrees(), unit),
        parallel::AttentionMask::bidirectional, mesh_));
    parallel::Sequences& sequences = state->sequences;
    const parallel::Partition& partition = sequences.partition;
    for (const std::int64_t rows : sequences.tp_rows) state->token_rows.push_back(rows / unit);
    const std::int64_t local = sequences.tp_rows[static_cast<std::size_t>(mesh_.tp_rank())];
    const DType type = role_.compute, statistics = ops::accumulate_type(type);
    // Without a backward pass nothing is read again but the output.
    backend::Arena& kept = role_.needs_backward ? saved : scratch;
    state->patches = kept.allocate(type, {local, std::int64_t{spec_.patch} * spec_.patch * spec_.channels});
    std::int64_t at = 0;
    for (const parallel::RowRange& range : partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank())) {
        const backend::ArenaScope scope(scratch);
        const Picture& picture = *pictures[range.sequence];
        const std::span pixels(picture.pixels,
                               static_cast<std::size_t>(picture.height) * picture.width * spec_.channels);
        ops::patchify(backend_, backend::to_device(backend_, pixels, scratch), picture.height, picture.width,
                      spec_.channels, spec_.patch, spec_.merge, range.first,
                      state->patches.slice(at, at + range.count));
        at += range.count;
    }
    sequences.copy_to_device(backend_, kept);
    sequences.cos = kept.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    sequences.sin = kept.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    const auto slice = partition.slice(mesh_.cp_rank());
    {
        const backend::ArenaScope scope(scratch);
        const std::vector<std::int32_t> rows = parallel::pick(y, slice, partition.offsets()),
                                        columns = parallel::pick(x, slice, partition.offsets());
        ops::fill_rotary_2d(backend_, backend::to_device(backend_, rows, scratch),
                            backend::to_device(backend_, columns, scratch), spec_.rope_theta, sequences.cos,
                            sequences.sin);
    }

    // A convolution whose stride is its kernel is a product over patches.
    const Tensor stream = kept.allocate(type, {local, spec_.width});
    ops::linear(backend_, state->patches, patch_weight_->weight, stream, patch_bias_->weight);
    state->stack = layers_.forward(stream, sequences, kept, scratch);

    state->normed = kept.allocate(type, {local, spec_.width});
    state->rstd = kept.allocate(statistics, {local});
    ops::rms_norm(backend_, state->stack.output, norm_->weight, state->normed, state->rstd, spec_.norm_eps);
    const std::int64_t tokens = sequences.rows / unit, part = merge_weight_->shard.row_count();
    state->merged = kept.allocate(type, {tokens, part});
    state->active = kept.allocate(type, {tokens, part});
    output = saved.allocate(type, {local / unit, role_.output_width});
    const backend::ArenaScope scope(scratch);
    // patchify has put the merge x merge patches of a token one after another, so that merging them is only
    // another view of the rows.
    ops::linear_gelu(backend_,
                     sequence_parallel_.all_gather(state->normed.reshape({local / unit, unit * spec_.width}),
                                                   state->token_rows, scratch),
                     merge_weight_->weight, merge_bias_->weight, state->merged, state->active);
    const Tensor projected = sequence_parallel_.partial(output, state->token_rows, scratch);
    ops::linear(backend_, state->active, project_weight_->weight, projected);
    sequence_parallel_.reduce_scatter(projected, output, state->token_rows, scratch);
    ops::add_bias(backend_, project_bias_->weight, output);
    return state;
}

void Vision::backward(Saved& saved, const Tensor& d_output, std::span<const Tensor>,
                      backend::Arena& scratch) {
    auto& state = static_cast<State&>(saved);
    backend::ArenaScope scope(scratch);
    const DType type = role_.compute;
    const std::span<const std::int64_t> tp_rows = state.token_rows;
    const std::int64_t local = state.patches.dim(0), unit = std::int64_t{spec_.merge} * spec_.merge,
                       tokens = state.merged.dim(0);
    const Tensor d_active = scratch.allocate(type, {tokens, state.active.columns()});
    const Tensor d_merged = scratch.allocate(type, {tokens, state.merged.columns()});
    const Tensor d_normed = scratch.allocate(type, {local, spec_.width});
    const Tensor d_stream = scratch.allocate(type, {local, spec_.width});
    // Nothing lies upstream of the pictures: a vision section runs backward only to train, so every gradient
    // is wanted and none goes further than the patches.
    const auto as_tokens = [&](const Tensor& rows) {
        return rows.reshape({local / unit, unit * spec_.width});
    };
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor d_rows = sequence_parallel_.all_gather(d_output, tp_rows, scratch);
        ops::linear_backward_input(backend_, d_rows, project_weight_->weight, d_active, false);
        ops::linear_backward_weight(backend_, d_rows, state.active, project_weight_->gradient);
    }
    ops::bias_backward(backend_, d_output, project_bias_->gradient, scratch);
    ops::gelu_backward(backend_, d_active, state.merged, d_merged);
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor part = sequence_parallel_.partial(as_tokens(d_normed), tp_rows, scratch);
        ops::linear_backward_input(backend_, d_merged, merge_weight_->weight, part, false);
        ops::linear_backward_weight(backend_, d_merged,
                                    sequence_parallel_.all_gather(as_tokens(state.normed), tp_rows, scratch),
                                    merge_weight_->gradient, merge_bias_->gradient, scratch);
        sequence_parallel_.reduce_scatter(part, as_tokens(d_normed), tp_rows, scratch);
    }
    ops::rms_norm_backward(backend_, d_normed, state.stack.output, norm_->weight, state.rstd, d_stream,
                           norm_->gradient, false, scratch);
    layers_.backward(state.stack, state.sequences, d_stream, scratch);
    ops::linear_backward_weight(backend_, d_stream, state.patches, patch_weight_->gradient,
                                patch_bias_->gradient, scratch);
}

}  // namespace maestro::model
