#include "parallel/parallel_linear.hpp"

#include <vector>

#include "ops/elementwise.hpp"
#include "ops/linear.hpp"

namespace maestro::parallel {

void ColumnParallelLinear::forward(const Tensor& input, const Tensor& output,
                                   std::span<const std::int64_t> tp_rows, backend::Arena& scratch) const {
    // The gathered copy is not saved: keeping it would undo what sequence parallelism saves.
    const backend::ArenaScope scope(scratch);
    forward_gathered(sequence_parallel_.all_gather(input, tp_rows, scratch), output, scratch);
}

void ColumnParallelLinear::forward_gathered(const Tensor& rows, const Tensor& output,
                                            backend::Arena& scratch) const {
    ops::linear(backend_, rows, weight_->weight, output, weight_of(bias_));
    if (adapter_) adapter_->forward(rows, output, scratch);
}

void ColumnParallelLinear::backward(const Tensor& d_output, const Tensor& input, const Tensor& d_input,
                                    std::span<const RowChunk> chunks, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    // Each tp rank has some of the output columns, so its gradient of the input is a partial sum over them;
    // the reduce-scatter completes the sum and leaves each rank its own rows. The input is gathered again for
    // the gradient of the weight, because it was not saved. Each exchange goes on beside GEMMs that do not
    // need it.
    const bool trained = weight_->trainable;
    const Tensor partial = sequence_parallel_.rows_of_all(d_input, d_output.dim(0), scratch);
    Tensor all, inner, d_inner;
    if (adapter_) d_inner = adapter_->allocate_inner(d_output.dim(0), scratch);
    if (trained_adapter()) inner = adapter_->allocate_inner(d_output.dim(0), scratch);
    std::vector<StartedGather> inputs;
    if (backward_reads_input()) {
        all = sequence_parallel_.rows_of_all(input, d_output.dim(0), scratch);
        inputs = sequence_parallel_.start_all_gather(input, chunks, all);
    }
    std::vector<collective::Operation> sums;
    for (const RowChunk& chunk : chunks) {
        const auto [begin, end] = chunk.slice;
        ops::linear_backward_input(backend_, d_output.slice(begin, end), weight_->weight,
                                   partial.slice(begin, end), false);
        if (adapter_)
            adapter_->backward_input(d_output.slice(begin, end), partial.slice(begin, end),
                                     d_inner.slice(begin, end));
        sequence_parallel_.launch_reduce_scatter(partial, d_input, chunk, sums, scratch);
    }
    for (StartedGather& gather : inputs) gather.wait();
    if (trained && bias_)
        ops::linear_backward_weight(backend_, d_output, all, weight_->gradient, bias_->gradient, scratch);
    else if (trained)
        ops::linear_backward_weight(backend_, d_output, all, weight_->gradient);
    if (trained_adapter()) adapter_->backward_weights(d_output, all, d_inner, inner);
    for (collective::Operation& sum : sums) sum.wait();
}

void RowParallelLinear::forward_add(const Tensor& input, const Tensor& addend, const Tensor& output,
                                    std::span<const std::int64_t> tp_rows, backend::Arena& scratch) const {
    // The GEMM adds the addend. In bf16 this rounds the sum once, where a GEMM followed by an addition would
    // round twice.
    if (sequence_parallel_.single_rank()) {
        ops::linear_accumulate(backend_, input, weight_->weight, output, addend);
        if (adapter_) adapter_->forward(input, output, scratch);
        return add_bias(output);
    }
    // With several tp ranks the partial sum of each is rounded as well, because it is sent in bf16.
    const backend::ArenaScope scope(scratch);
    const Tensor partial = scratch.allocate(output.dtype, {input.dim(0), output.columns()});
    forward_partial(input, partial, scratch);
    sequence_parallel_.reduce_scatter(partial, output, tp_rows, scratch);
    finish_sum(addend, output);
}

void RowParallelLinear::forward_partial(const Tensor& input, const Tensor& partial,
                                        backend::Arena& scratch) const {
    ops::linear(backend_, input, weight_->weight, partial);
    if (adapter_) adapter_->forward(input, partial, scratch);
}

void RowParallelLinear::finish_sum(const Tensor& addend, const Tensor& output) const {
    // If each rank added the addend before the sum, it would be counted once for every rank.
    ops::add(backend_, addend, output);
    add_bias(output);
}

void RowParallelLinear::add_bias(const Tensor& output) const {
    if (bias_) ops::add_bias(backend_, bias_->weight, output);
}

void RowParallelLinear::backward(const Tensor& d_output, const Tensor& input, const Tensor& d_input,
                                 std::span<const RowChunk> chunks, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    // The forward pass ended with a reduce-scatter over the rows. Its adjoint is an all-gather: every rank
    // needs the gradient of all rows for its own channels.
    const Tensor all = sequence_parallel_.rows_of_all(d_output, d_input.dim(0), scratch);
    std::vector<StartedGather> started = sequence_parallel_.start_all_gather(d_output, chunks, all);
    Tensor d_inner;
    if (adapter_) d_inner = adapter_->allocate_inner(d_input.dim(0), scratch);
    for (std::size_t c = 0; c < chunks.size(); ++c) {
        const auto [begin, end] = chunks[c].slice;
        const Tensor rows = started[c].wait();
        ops::linear_backward_input(backend_, rows, weight_->weight, d_input.slice(begin, end), false);
        if (adapter_) adapter_->backward_input(rows, d_input.slice(begin, end), d_inner.slice(begin, end));
    }
    if (trained_adapter())
        adapter_->backward_weights(all, input, d_inner, adapter_->allocate_inner(d_input.dim(0), scratch));
    if (!weight_->trainable) return;
    ops::linear_backward_weight(backend_, all, input, weight_->gradient);
    // Of the local rows: the optimizer sums the gradients of the copies of the bias.
    if (bias_) ops::bias_backward(backend_, d_output, bias_->gradient, scratch);
}

}  // namespace maestro::parallel
