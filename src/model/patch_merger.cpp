#include "model/patch_merger.hpp"

#include "ops/elementwise.hpp"
#include "ops/linear.hpp"

namespace maestro::model {

PatchMerger::PatchMerger(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                         const parallel::Mesh& mesh, parallel::ParameterStore& store,
                         const std::string& prefix, std::int64_t output_width, NormOf norm_of)
    : backend_(backend),
      type_(role.compute),
      gelu_(spec.vision_form.exact_gelu ? ops::GeluForm::exact : ops::GeluForm::tanh),
      norm_of_(norm_of),
      merged_(std::int64_t{spec.merge} * spec.merge * spec.width),
      sequence_parallel_(backend, mesh.tp()),
      norm_(backend, spec.form.norm, spec.norm_eps, store, prefix + "norm",
            norm_of == NormOf::tokens ? merged_ : spec.width, role.trained) {
    const std::int64_t hidden = spec.vision_form.wide_merger ? merged_ : output_width;
    const Range part = mesh.tp_part(hidden);
    up_ = &store.declare(prefix + "merger.weight", {hidden, merged_}, parallel::Init::normal, role.trained,
                         {{part}}, {0, merged_});
    up_bias_ = &store.declare(prefix + "merger.bias", {hidden}, parallel::Init::zeros, role.trained, {{part}},
                              {0, 1});
    down_ = &store.declare(prefix + "projector.weight", {output_width, hidden}, parallel::Init::normal,
                           role.trained, {{{0, output_width}}}, part);
    down_bias_ =
        &store.declare(prefix + "projector.bias", {output_width}, parallel::Init::zeros, role.trained);
}

PatchMergerActivations PatchMerger::forward(const Tensor& input, const Tensor& output,
                                            std::span<const std::int64_t> tp_tokens, backend::Arena& kept,
                                            backend::Arena& scratch) const {
    std::int64_t tokens = 0;
    for (const std::int64_t rows : tp_tokens) tokens += rows;
    const std::int64_t columns = up_->shard.row_count();
    PatchMergerActivations a;
    a.input = input;
    a.normed = kept.allocate(type_, {input.dim(0), input.columns()});
    a.norm = norm_.allocate(norm_rows(input).dim(0), type_, kept);
    norm_.forward(norm_rows(input), norm_rows(a.normed), a.norm);
    a.merged = kept.allocate(type_, {tokens, columns});
    a.activated = kept.allocate(type_, {tokens, columns});
    const backend::ArenaScope scope(scratch);
    // Column-parallel, then row-parallel, as the two GEMMs of a Megatron MLP: the activation between them
    // stays on its rank.
    ops::linear_gelu(backend_, sequence_parallel_.all_gather(as_tokens(a.normed), tp_tokens, scratch),
                     up_->weight, up_bias_->weight, a.merged, a.activated, gelu_);
    const Tensor partial = sequence_parallel_.rows_of_all(output, tp_tokens, scratch);
    ops::linear(backend_, a.activated, down_->weight, partial);
    sequence_parallel_.reduce_scatter(partial, output, tp_tokens, scratch);
    // After the sum over the ranks, so that the bias is added once.
    ops::add_bias(backend_, down_bias_->weight, output);
    return a;
}

void PatchMerger::backward(const PatchMergerActivations& a, const Tensor& d_output, const Tensor& d_input,
                           bool accumulate, std::span<const std::int64_t> tp_tokens,
                           backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t tokens = a.merged.dim(0);
    const Tensor d_activated = scratch.allocate(type_, {tokens, a.activated.columns()});
    const Tensor d_merged = scratch.allocate(type_, {tokens, a.merged.columns()});
    const Tensor d_normed = scratch.allocate(type_, {a.normed.dim(0), a.normed.columns()});
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor d_rows = sequence_parallel_.all_gather(d_output, tp_tokens, scratch);
        ops::linear_backward_input(backend_, d_rows, down_->weight, d_activated, false);
        if (down_->trainable) ops::linear_backward_weight(backend_, d_rows, a.activated, down_->gradient);
    }
    // Every tp rank has a copy of this bias and adds the gradient of its local rows only. The sum over the
    // copies is taken at the end of the step (parallel/parameter_group.hpp).
    if (down_bias_->trainable) ops::bias_backward(backend_, d_output, down_bias_->gradient, scratch);
    ops::gelu_backward(backend_, d_activated, a.merged, d_merged, gelu_);
    {
        const backend::ArenaScope gathered(scratch);
        const Tensor partial = sequence_parallel_.rows_of_all(as_tokens(d_normed), tp_tokens, scratch);
        ops::linear_backward_input(backend_, d_merged, up_->weight, partial, false);
        if (up_->trainable)
            ops::linear_backward_weight(
                backend_, d_merged, sequence_parallel_.all_gather(as_tokens(a.normed), tp_tokens, scratch),
                up_->gradient, up_bias_->gradient, scratch);
        sequence_parallel_.reduce_scatter(partial, as_tokens(d_normed), tp_tokens, scratch);
    }
    norm_.backward(norm_rows(d_normed), norm_rows(a.input), a.norm, norm_rows(d_input), accumulate, scratch);
}

}  // namespace maestro::model
