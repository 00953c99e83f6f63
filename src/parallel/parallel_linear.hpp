// Linear layers whose weight is split over the tp ranks (Megatron-LM's ColumnParallelLinear and
// RowParallelLinear). Shape letters as in sequence_parallel.hpp; I input channels, O output channels.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "parallel/low_rank_adapter.hpp"
#include "parallel/sequence_parallel.hpp"

namespace maestro::parallel {

/// Each rank computes its part of the output channels for all rows. The weight and the mesh outlive the
/// object.
class ColumnParallelLinear {
public:
    /// `bias` has this rank's part of the output channels; null: none.
    ColumnParallelLinear(backend::Backend& backend, SequenceParallel sequence_parallel,
                         const Parameter& weight, const Parameter* bias = nullptr,
                         std::optional<LowRankAdapter> adapter = {})
        : backend_(backend),
          sequence_parallel_(sequence_parallel),
          weight_(&weight),
          bias_(bias),
          adapter_(std::move(adapter)) {}

    /// output[T, part of O] from input[local, I]. Collective over tp.
    void forward(const Tensor& input, const Tensor& output, std::span<const std::int64_t> tp_rows,
                 backend::Arena& scratch) const;
    /// The same from rows[T, I], which have been gathered.
    void forward_gathered(const Tensor& rows, const Tensor& output, backend::Arena& scratch) const;
    /// Whether backward() reads `input`, which only gradients of weights need.
    bool backward_reads_input() const { return weight_->trainable || trained_adapter(); }
    /// d_input[local, I] from d_output[T, part of O], and the gradients of what is trained. T rows are in the
    /// order of the chunks. Collective over tp.
    void backward(const Tensor& d_output, const Tensor& input, const Tensor& d_input,
                  std::span<const RowChunk> chunks, backend::Arena& scratch) const;

private:
    bool trained_adapter() const { return adapter_ && adapter_->trainable(); }

    backend::Backend& backend_;
    SequenceParallel sequence_parallel_;
    const Parameter *weight_, *bias_;
    std::optional<LowRankAdapter> adapter_;
};

/// Each rank has a part of the input channels. The outputs of all ranks are summed. The weight and the mesh
/// outlive the object.
class RowParallelLinear {
public:
    /// Every rank holds the whole bias; null: none.
    RowParallelLinear(backend::Backend& backend, SequenceParallel sequence_parallel, const Parameter& weight,
                      const Parameter* bias = nullptr, std::optional<LowRankAdapter> adapter = {})
        : backend_(backend),
          sequence_parallel_(sequence_parallel),
          weight_(&weight),
          bias_(bias),
          adapter_(std::move(adapter)) {}

    /// output[local, O] = addend[local, O] + the layer's output for input[T, part of I]. Collective over tp.
    void forward_add(const Tensor& input, const Tensor& addend, const Tensor& output,
                     std::span<const std::int64_t> tp_rows, backend::Arena& scratch) const;
    /// partial[T, O]: this rank's term of the sum, from input[T, part of I].
    void forward_partial(const Tensor& input, const Tensor& partial, backend::Arena& scratch) const;
    /// Adds addend[local, O] and the bias to output[local, O], the sum of all ranks' terms.
    void finish_sum(const Tensor& addend, const Tensor& output) const;
    /// As of ColumnParallelLinear.
    bool backward_reads_input() const { return weight_->trainable || trained_adapter(); }
    /// d_input[T, part of I] from d_output[local, O], and the gradients of what is trained. T rows are in the
    /// order of the chunks. Collective over tp.
    void backward(const Tensor& d_output, const Tensor& input, const Tensor& d_input,
                  std::span<const RowChunk> chunks, backend::Arena& scratch) const;

private:
    bool trained_adapter() const { return adapter_ && adapter_->trainable(); }
    void add_bias(const Tensor& output) const;

    backend::Backend& backend_;
    SequenceParallel sequence_parallel_;
    const Parameter *weight_, *bias_;
    std::optional<LowRankAdapter> adapter_;
};

}  // namespace maestro::parallel
