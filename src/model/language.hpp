// The language model: token embedding with the rows of other sections in the places of their markers, causal
// layers, and either hidden states for another section or the loss. The tp ranks share the vocabulary.
//
// Logits are [T, vocabulary], by far the largest tensor of a language model, so they exist for a chunk of
// rows at a time and are never kept. That is why forward also runs the backward of the head: while the logits
// of a chunk are there, it adds to the gradient of the head's weight and leaves the gradient of the last
// norm's output, [local, width], for backward to start from.
//
// A row is numbered in five ways on its way from the file to the loss:
//
//   sample    tokens of one sample as stored; a picture is one marker token
//     |         pack(): a picture's rows take the place of its marker, samples follow each other
//   packed    rows of the whole micro-batch, the same on all ranks of the replica
//     |         parallel::Partition: the cp ranks share the sequences
//   slice     the T rows of one cp rank: attention and the products of the layers work on all of them
//     |         sequence parallelism: the tp ranks hold consecutive parts of the slice
//   local     the rows of one rank: norms, the residual stream, what edges bring and take away
//     |         of these, the rows whose next token has a loss weight
//   target    what the head and the loss work on: local targets, and those of all tp ranks of the slice
#pragma once

#include "model/transformer.hpp"

namespace maestro::model {

class Language final : public Module {
public:
    Language(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh);
    std::unique_ptr<Saved> forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                   backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                   Result& result) override;
    void backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                  backend::Arena& scratch) override;
    void prepare(std::span<const std::int64_t> rows) override {
        layers_.prepare(rows, parallel::AttentionMask::causal, role_.needs_backward);
    }
    void collect(Result& result) override;
    std::vector<std::vector<std::int64_t>> input_rows(const Batch& batch) const override;
    void assume_worst_case() override { worst_case_ = true; }

private:
    struct PackedBatch;
    struct State;
    struct Targets;
    PackedBatch pack(const Batch& batch) const;
    /// This rank's part of the micro-batch.
    State partition(const PackedBatch& packed) const;
    Targets targets_of(const PackedBatch& packed, const State& state) const;
    /// The most targets that a micro-batch of so many can have in one slice, in its first rows.
    Targets worst_case_targets(const PackedBatch& packed, const State& state) const;
    /// Adds to loss_ and, in an evaluation, to the result; in training also writes d_normed and adds to the
    /// gradient of the head.
    void loss(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const Targets& targets,
              const Tensor& normed, const Tensor& d_normed, backend::Arena& scratch, Result& result);
    /// The teacher's hidden states at the targets of all tp ranks of the slice. `input`: what the edge
    /// brings.
    Tensor teacher_states(const std::vector<Tensor>& input, const Targets& targets, std::int64_t width,
                          std::int64_t room, backend::Arena& arena) const;
    /// Marks the names of which the arg-max of a chunk of logits gets a token wrong. Collective over tp.
    void compare_names(const Tensor& logits, const Targets& targets, std::int64_t first_target,
                       std::vector<float>& wrong, backend::Arena& arena) const;

    backend::Backend& backend_;
    ModelSpec spec_;
    Role role_;
    Range vocabulary_;  ///< tokens of this tp rank
    parallel::SequenceParallel sequence_parallel_;
    const parallel::Parameter* embedding_;
    Transformer layers_;
    const parallel::Parameter *norm_, *head_;
    backend::Buffer loss_;  ///< f64[1]: of all micro-batches since collect()
    std::vector<const parallel::Parameter*>
        teacher_heads_;  ///< by input edge; null where it brings no hidden states
    bool worst_case_ = false;
};

}  // namespace maestro::model
