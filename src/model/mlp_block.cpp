#include "model/mlp_block.hpp"

#include "ops/gelu.hpp"
#include "ops/swiglu.hpp"

namespace maestro::model {

MlpBlock::MlpBlock(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                   const parallel::Mesh& mesh, parallel::ParameterStore& store, const std::string& prefix)
    : backend_(backend),
      spec_(spec),
      type_(role.compute),
      tp_overlap_(role.tp_overlap),
      mlp_(mesh.tp_part(spec.mlp).size()),
      sequence_parallel_(backend, mesh.tp()),
      norm_(backend, spec.form.norm, spec.norm_eps, store, prefix + "mlp.norm", spec.width, role.trained),
      weights_(declare(store, role, mesh, prefix)),
      up_(backend, sequence_parallel_, *weights_.up, weights_.up_bias, weights_.up_adapter),
      down_(backend, sequence_parallel_, *weights_.down, weights_.down_bias, weights_.down_adapter) {}

/// In the order in which forward uses them, like those of attention.
MlpBlock::Weights MlpBlock::declare(parallel::ParameterStore& store, const Role& role,
                                    const parallel::Mesh& mesh, const std::string& prefix) const {
    const std::int64_t width = spec_.width, mlp = spec_.mlp;
    const Range part = mesh.tp_part(mlp);
    std::vector<parallel::ParameterRows> parts = {{part}};
    // One GEMM for both, as for queries, keys and values.
    if (gated()) parts.push_back({{part.begin + mlp, part.end + mlp}});
    const std::int64_t columns = gated() ? 2 * mlp : mlp;
    const std::string up = prefix + (gated() ? "mlp.gate_up" : "mlp.up");
    Weights weights{};
    weights.up = &store.declare(up + ".weight", {columns, width}, parallel::Init::normal, role.trained, parts,
                                {0, width});
    if (spec_.form.bias == LayerForm::Bias::all)
        weights.up_bias =
            &store.declare(up + ".bias", {columns}, parallel::Init::zeros, role.trained, parts, {0, 1});
    std::vector<parallel::AdapterTarget> targets;
    if (gated()) targets.push_back({"gate_proj", mlp, {{part}}});
    const bool fused = spec_.form.fused_qkv;
    targets.push_back({fused ? "mlp.linear_fc1" : "up_proj", mlp, {{part}}});
    weights.up_adapter =
        parallel::LowRankAdapter::column_parallel(store, up, role.lora, width, targets, role.trained);
    weights.down = &store.declare(prefix + "mlp.down.weight", {width, mlp}, parallel::Init::residual,
                                  role.trained, {{{0, width}}}, part);
    if (spec_.form.bias == LayerForm::Bias::all)
        weights.down_bias =
            &store.declare(prefix + "mlp.down.bias", {width}, parallel::Init::zeros, role.trained);
    weights.down_adapter = parallel::LowRankAdapter::row_parallel(store, prefix + "mlp.down", role.lora,
                                                                  fused ? "mlp.linear_fc2" : "down_proj",
                                                                  width, mlp, part, role.trained);
    return weights;
}

MlpBlockActivations MlpBlock::allocate(const Tensor& input, const parallel::Sequences& sequences,
                                       backend::Arena& saved, backend::Arena& passing) const {
    const std::int64_t local = input.dim(0), rows = sequences.rows;
    MlpBlockActivations a;
    a.input = input;
    a.normed = passing.allocate(type_, {local, spec_.width});
    a.norm = norm_.allocate(local, type_, saved);
    a.hidden = saved.allocate(type_, {rows, gated() ? 2 * mlp_ : mlp_});
    a.activated = passing.allocate(type_, {rows, mlp_});  // read by the weight gradient of `down`
    return a;
}

std::vector<parallel::RowChunk> MlpBlock::chunks(const parallel::Sequences& sequences) const {
    // About 25 us of a GEMM of bf16 on an H100, where an exchange takes 15 us before its first byte arrives.
    constexpr double kMinFlops = 0x1p34;
    const double flops = 2.0 * static_cast<double>(sequences.rows) * spec_.width * spec_.mlp /
                         static_cast<double>(sequences.tp_rows.size());
    const bool gpu = !backend_.shares_memory();
    const bool overlap = tp_overlap_ == TpOverlap::always ||
                         (tp_overlap_ == TpOverlap::automatic && gpu && flops >= kMinFlops);
    return parallel::row_chunks(sequences.tp_rows, sequence_parallel_.rank(),
                                overlap && !sequence_parallel_.single_rank());
}

void MlpBlock::activate(const Tensor& hidden, const Tensor& activated) const {
    if (gated())
        ops::swiglu(backend_, hidden, activated);
    else
        ops::gelu(backend_, hidden, activated, ops::GeluForm::tanh);
}

void MlpBlock::forward(const MlpBlockActivations& a, const Tensor& output,
                       const parallel::Sequences& sequences, backend::Arena& scratch) const {
    norm_.forward(a.input, a.normed, a.norm);
    if (sequence_parallel_.single_rank()) {
        up_.forward_gathered(a.normed, a.hidden, scratch);
        activate(a.hidden, a.activated);
        return down_.forward_add(a.activated, a.input, output, sequences.tp_rows, scratch);
    }
    const backend::ArenaScope scope(scratch);
    const std::vector<parallel::RowChunk> parts = chunks(sequences);
    const Tensor all = sequence_parallel_.rows_of_all(a.normed, sequences.rows, scratch);
    std::vector<parallel::StartedGather> inputs = sequence_parallel_.start_all_gather(a.normed, parts, all);
    std::vector<collective::Operation> sums;
    for (std::size_t c = 0; c < parts.size(); ++c) {
        // The gather of the second chunk goes on beside the first GEMM, and the sum of the first chunk beside
        // the GEMMs of the second.
        const auto [begin, end] = parts[c].slice;
        const Tensor hidden = a.hidden.slice(begin, end), activated = a.activated.slice(begin, end);
        up_.forward_gathered(inputs[c].wait(), hidden, scratch);
        activate(hidden, activated);
        // The gathered rows have been read, and their memory is free for this rank's part of the sums.
        down_.forward_partial(activated, all.slice(begin, end), scratch);
        sequence_parallel_.launch_reduce_scatter(all, output, parts[c], sums, scratch);
    }
    for (collective::Operation& sum : sums) sum.wait();
    down_.finish_sum(a.input, output);
}

void MlpBlock::backward(const MlpBlockActivations& a, const Tensor& d_stream,
                        const parallel::Sequences& sequences, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::vector<parallel::RowChunk> parts = chunks(sequences);
    const Tensor d_activated = scratch.allocate(type_, {sequences.rows, mlp_});
    {
        const backend::ArenaScope restored(scratch);
        Tensor activated = a.activated;
        if (activated.rank == 0 && down_.backward_reads_input()) {
            activated = scratch.allocate(type_, {sequences.rows, mlp_});
            activate(a.hidden, activated);
        }
        down_.backward(d_stream, activated, d_activated, parts, scratch);
    }
    const Tensor d_hidden = scratch.allocate(type_, {sequences.rows, a.hidden.columns()}),
                 d_normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
    if (gated())
        ops::swiglu_backward(backend_, d_activated, a.hidden, d_hidden);
    else
        ops::gelu_backward(backend_, d_activated, a.hidden, d_hidden, ops::GeluForm::tanh);
    {
        const backend::ArenaScope restored(scratch);
        Tensor normed = a.normed;
        if (normed.rank == 0 && up_.backward_reads_input()) {
            normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            norm_.forward(a.input, normed, a.norm);
        }
        up_.backward(d_hidden, normed, d_normed, parts, scratch);
    }
    norm_.backward(d_normed, a.input, a.norm, d_stream, true, scratch);
}

}  // namespace maestro::model
