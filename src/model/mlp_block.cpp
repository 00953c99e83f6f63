#include "model/mlp_block.hpp"

#include "ops/dispatch.hpp"
#include "ops/rms_norm.hpp"
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
      weights_(declare(store, role, mesh, prefix)),
      gate_up_(backend, sequence_parallel_, *weights_.gate_up),
      down_(backend, sequence_parallel_, *weights_.down) {}

/// In the order in which forward uses them, like those of attention.
MlpBlock::Weights MlpBlock::declare(parallel::ParameterStore& store, const Role& role,
                                    const parallel::Mesh& mesh, const std::string& prefix) const {
    const std::int64_t width = spec_.width;
    const Range part = mesh.tp_part(spec_.mlp);
    return {
        .norm = &store.declare(prefix + "mlp.norm.weight", {width}, parallel::Init::ones, role.trained),
        // One GEMM for both, as for queries, keys and values.
        .gate_up = &store.declare(prefix + "mlp.gate_up.weight", {2 * std::int64_t{spec_.mlp}, width},
                                  parallel::Init::normal, role.trained,
                                  {{part}, {{part.begin + spec_.mlp, part.end + spec_.mlp}}}, {0, width}),
        .down = &store.declare(prefix + "mlp.down.weight", {width, spec_.mlp}, parallel::Init::residual,
                               role.trained, {{{0, width}}}, part),
    };
}

MlpBlockActivations MlpBlock::allocate(const Tensor& input, const parallel::Sequences& sequences,
                                       backend::Arena& saved, backend::Arena& passing) const {
    const std::int64_t local = input.dim(0), rows = sequences.rows;
    MlpBlockActivations a;
    a.input = input;
    a.normed = passing.allocate(type_, {local, spec_.width});
    a.rstd = saved.allocate(ops::accumulate_type(type_), {local});
    a.gate_up = saved.allocate(type_, {rows, 2 * mlp_});
    a.gated = passing.allocate(type_, {rows, mlp_});  // read by the weight gradient of `down`
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

void MlpBlock::forward(const MlpBlockActivations& a, const Tensor& output,
                       const parallel::Sequences& sequences, backend::Arena& scratch) const {
    ops::rms_norm(backend_, a.input, weights_.norm->weight, a.normed, a.rstd, spec_.norm_eps);
    if (sequence_parallel_.single_rank()) {
        gate_up_.forward_gathered(a.normed, a.gate_up);
        ops::swiglu(backend_, a.gate_up, a.gated);
        return down_.forward_add(a.gated, a.input, output, sequences.tp_rows, scratch);
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
        const Tensor gate_up = a.gate_up.slice(begin, end), gated = a.gated.slice(begin, end);
        gate_up_.forward_gathered(inputs[c].wait(), gate_up);
        ops::swiglu(backend_, gate_up, gated);
        // The gathered rows have been read, and their memory is free for this rank's part of the sums.
        down_.forward_partial(gated, all.slice(begin, end));
        sequence_parallel_.launch_reduce_scatter(all, output, parts[c], sums, scratch);
    }
    for (collective::Operation& sum : sums) sum.wait();
    down_.finish_sum(a.input, output);
}

void MlpBlock::backward(const MlpBlockActivations& a, const Tensor& d_stream,
                        const parallel::Sequences& sequences, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::vector<parallel::RowChunk> parts = chunks(sequences);
    const Tensor d_gated = scratch.allocate(type_, {sequences.rows, mlp_});
    {
        const backend::ArenaScope restored(scratch);
        Tensor gated = a.gated;
        if (gated.rank == 0 && weights_.down->trainable) {  // only the weight's gradient reads it
            gated = scratch.allocate(type_, {sequences.rows, mlp_});
            ops::swiglu(backend_, a.gate_up, gated);
        }
        down_.backward(d_stream, gated, d_gated, parts, scratch);
    }
    const Tensor d_gate_up = scratch.allocate(type_, {sequences.rows, a.gate_up.columns()}),
                 d_normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
    ops::swiglu_backward(backend_, d_gated, a.gate_up, d_gate_up);
    {
        const backend::ArenaScope restored(scratch);
        Tensor normed = a.normed;
        if (normed.rank == 0 && weights_.gate_up->trainable) {
            normed = scratch.allocate(type_, {d_stream.dim(0), spec_.width});
            ops::rms_norm(backend_, a.input, weights_.norm->weight, normed, a.rstd, spec_.norm_eps);
        }
        gate_up_.backward(d_gate_up, normed, d_normed, parts, scratch);
    }
    ops::rms_norm_backward(backend_, d_normed, a.input, weights_.norm->weight, a.rstd, d_stream,
                           weights_.norm->gradient, true, scratch);
}

}  // namespace maestro::model
