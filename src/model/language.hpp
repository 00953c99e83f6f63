// The decoder (its tp ranks share out the vocabulary): token embedding with the rows of other sections in the
// places of their markers, causal layers, and either hidden states for another section or the loss.
//
// Logits are [T, vocabulary], by far the largest tensor of a language model, so they exist for a chunk of
// rows at a time and are never kept. That is why forward also runs the head backward: while a chunk's logits
// are there it adds to the head's gradient and leaves the gradient of the last norm's output, [T, width], for
// backward to start from.
#pragma once

#include "model/transformer.hpp"

namespace maestro::model {

class Language final : public Module {
public:
    Language(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Peers peers);
    std::unique_ptr<Saved> forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                   backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                   Result& result) override;
    void backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                  backend::Arena& scratch) override;
    void prepare(std::span<const std::int64_t> rows) override {
        layers_.prepare(rows, parallel::Attention::causal, role_.needs_backward);
    }
    void collect(Result& result) override;
    std::vector<std::vector<std::int64_t>> input_rows(const Batch& batch) const override;

private:
    struct State;
    struct Packed;
    struct Targets;
    /// The rows of the whole micro-batch, and what is to be predicted in it.
    Packed pack(const Batch& batch) const;
    /// Its rows and targets that are of this rank, or of its slice.
    State share_out(const Packed& packed) const;
    Targets targets_of(const Packed& packed, const State& state, bool any_order) const;
    /// Adds to loss_ and, in an evaluation, to the result; in training also writes d_normed and adds to the
    /// head's gradient.
    void loss(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const Targets& targets,
              const Tensor& normed, const Tensor& d_normed, backend::Arena& scratch, Result& result);

    backend::Backend& backend_;
    ModelSpec spec_;
    Role role_;
    Range vocabulary_;  ///< tokens of this tp rank
    parallel::RowShares shares_;
    const parallel::Parameter* embedding_;
    Transformer layers_;
    const parallel::Parameter *norm_, *head_;
    backend::Buffer loss_;  ///< f64[1]: of all micro-batches since collect()
    std::vector<const parallel::Parameter*>
        teacher_heads_;  ///< by input edge; null where it brings no hidden states
};

}  // namespace maestro::model
