// The language model: token embedding, causal transformer layers, and either hidden states for another
// section or the loss. Rows that other sections deliver (the embeddings of items) take the places of their
// markers.
//
// Logits are [N, V], by far the largest tensor of a language model, so they exist for a chunk of rows at a
// time (logit_chunk.hpp) and are never saved. That is why forward() also runs the backward pass of the head:
// while the logits of a chunk exist, it adds to the gradient of the head's weight and leaves d_normed, the
// gradient of the final norm's output, for backward() to start from. The tp ranks share the vocabulary
// (Megatron-LM's VocabParallelEmbedding and vocab-parallel cross entropy).
//
// A pipeline stage has some of the layers (Role::stage). All stages pack a micro-batch alike; the first one
// embeds it, the last one has the final norm, the head and the loss. With tied embeddings both hold
// embedding.weight, and each adds its part of the gradient.
//
// The same token has six row numbers on its way from the file to the loss. Variables are named after the
// space that they count in. C is the model width, V the vocabulary, T the rows of a slice, N its targets.
//
//   sample row   A token of one sample as stored; an item is one marker token.
//       |          Rows: sample.tokens.size().
//       |
//       |  pack() replaces each marker by the rows of its item and concatenates the samples.
//       v
//   packed row   A row of the whole micro-batch, the same on all ranks of the replica.
//       |          Rows: Partition::rows().
//       |
//       |  partition() keeps the part of each sequence that this cp rank has (parallel::Partition).
//       v
//   slice row    A row of one cp rank. Attention and the GEMMs of the layers work on all of them.
//       |  ^       Rows: T = Sequences::rows.
//       |  |
//       |  |  SequenceParallel::reduce_scatter() to local rows, all_gather() back to slice rows.
//       v  |
//   local row    A row of this rank, consecutive in the slice. Norms and the residual stream work on these.
//       |  ^       Rows: Sequences::tp_rows[tp rank].
//       |  |
//       |  |  scatter_rows() inserts what an edge delivers, gather_rows() extracts the gradient for it. The
//       |  |  edge between two stages carries all local rows, in their order.
//       |  v
//       |  edge row   A row that input edge e delivers to this rank, in sample order.
//       |               Rows: State::input_rows[e], by sample.
//       |
//       |  targets_of() selects rows, gather_rows() and all_gather() over tp collect their hidden states.
//       v
//   target row   A slice row whose next token has a loss weight. The head and the loss work on these only.
//                  Rows: N = Targets::tokens.size(), the targets of the first tp rank first.
#pragma once

#include <optional>

#include "model/norm.hpp"
#include "model/transformer.hpp"

namespace maestro::model {

/// A sequence that a language model continues, always by the most likely token.
struct Continuation {
    DecodingState layers;             ///< of the rows up to the one that predicts next_token
    std::int32_t next_token = -1;     ///< the same on all ranks of the replica
    std::int32_t next_position = -1;  ///< of next_token's row, for the rotary embedding
};

class Language final : public Module {
public:
    Language(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh);
    std::unique_ptr<Saved> forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                   backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                   Result& result) override;
    void backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                  backend::Arena& scratch) override;
    void prepare(std::span<const std::int64_t> rows, std::int64_t sequences) override {
        layers_.prepare(rows, sequences, parallel::AttentionMask::causal, role_.needs_backward);
    }
    void collect(Result& result) override;
    std::vector<LossSum> loss_sums() const override { return loss_sums_; }
    std::vector<ExpertLoad> take_expert_loads() override { return layers_.take_expert_loads(); }
    HostBytes host_bytes(const Saved& saved) const override;
    std::vector<std::vector<std::int64_t>> input_rows(const Batch& batch) const override;
    void assume_worst_case() override { worst_case_ = true; }

    // Greedy decoding (decode.cpp), in a section that computes the loss, needs no backward pass, and has one
    // stage and cp 1.
    /// Returns a continuation with room for so many rows, in `arena`.
    Continuation make_continuation(std::int64_t rows, backend::Arena& arena) const;
    /// From now on forward() takes batches of one sample and makes `sequence` continue it: its layers see the
    /// rows before its first target, and the token that these predict is the next one. Null: no longer.
    void record(Continuation* sequence) { recorded_ = sequence; }
    /// Computes the row of the sequence's next token, and with it the token that follows. Collective over the
    /// replica.
    void decode(Continuation& sequence, backend::Arena& scratch);

private:
    struct Marked;
    struct PackedBatch;
    struct State;
    struct Targets;
    struct LossInputs;
    /// Declares a matrix [V, width] of which this tp rank holds the rows of its part of the vocabulary.
    const parallel::Parameter& declare_by_token(const std::string& name, std::int64_t width, bool trained,
                                                parallel::Axes replicated = {});
    /// Returns the markers of a sample, in the order of its items.
    std::vector<Marked> markers_of(const SampleView& sample) const;
    /// From sample rows to packed rows. Pure; every rank of the replica computes the same.
    PackedBatch pack(const Batch& batch) const;
    /// From packed rows to the slice and local rows of this rank.
    State partition(const PackedBatch& packed) const;
    /// From the packed rows of the targets to target rows of this rank's slice.
    Targets targets_of(const PackedBatch& packed, const State& state) const;
    /// By sample: the share of its targets in the loss weights of the step.
    static std::vector<double> loss_shares(const PackedBatch& packed, double loss_scale);
    /// As many targets in one slice as any micro-batch with so many targets can have, in its first rows.
    Targets worst_case_targets(const PackedBatch& packed, const State& state) const;

    /// Makes the tables of the layers and copies the ids of `state` to the device.
    void copy_to_device(State& state, backend::Arena& kept, backend::Arena& scratch) const;
    /// Returns the stream[local rows, C] that enters the layers of this stage: that of the stage before, or
    /// on the first stage the embeddings of tokens and edges. Collective over tp.
    Tensor input_stream(std::span<const std::vector<Tensor>> inputs, const State& state, backend::Arena& kept,
                        backend::Arena& scratch) const;
    /// stream[local rows, C] = the embeddings of this rank's tokens. Collective over tp.
    void embed(const State& state, const Tensor& stream, backend::Arena& scratch) const;
    /// Writes a block of `width` columns of all edges' rows to their places in `stream`: 0, the embeddings;
    /// or adds it: 1 + i, what DeepStack delivers for the output of layer i.
    void insert_edge_rows(std::span<const std::vector<Tensor>> inputs, const State& state, int block,
                          const Tensor& stream) const;
    /// The gradient of a block of `width` columns of the edges' rows: 0, the embeddings; 1 + i, what was
    /// added after layer i.
    void extract_gradients(const State& state, int block, const Tensor& d_stream,
                           std::span<const Tensor> d_inputs) const;
    /// Throws Error(broken_invariant) unless every input edge delivers the rows that this rank holds.
    void check_inputs(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                      const State& state) const;
    /// The part of forward() behind the layers, on the last stage: final norm, output and loss.
    void finish(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const PackedBatch& packed,
                State& state, backend::Arena& saved, backend::Arena& scratch, Tensor& output, Result& result);
    /// Its backward pass: d_stream[local rows, C], the gradient of the layers' output.
    void finish_backward(State& state, const Tensor& d_output, const Tensor& d_stream,
                         backend::Arena& scratch);

    /// Adds the losses of all targets to sums_ and, in an evaluation, the answers to `result`. In training
    /// also writes the target rows of d_normed[local rows, C] and adds the gradient of the head. Collective
    /// over the replica.
    void loss(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const Targets& targets,
              const Tensor& normed, const Tensor& d_normed, backend::Arena& scratch, Result& result);
    /// Gathers what the loss reads of every target of the slice. Collective over tp.
    LossInputs loss_inputs(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                           const Targets& targets, const Tensor& normed, backend::Arena& arena) const;
    /// The divergence from a teacher, or the term that has none; null: no such term.
    const LossTerm* find_term(bool with_teacher) const;
    /// logits[n, V of this rank] of targets [begin, begin + n) become their gradient, and their losses are
    /// added to sums_. Collective over tp.
    void loss_of_chunk(const Batch& batch, const LossInputs& in, const Tensor& logits, std::int64_t begin,
                       backend::Arena& arena) const;
    /// The backward pass of the head for targets [begin, begin + n): adds to the gradient of its weight and
    /// replaces the hidden states of these targets by their gradient.
    void head_backward(const LossInputs& in, const Tensor& d_logits, std::int64_t begin,
                       backend::Arena& arena) const;
    /// Returns the teacher's hidden states [N, teacher width] at the targets of all tp ranks, from the edge
    /// rows `input` of this rank. Allocates room for `max_local_targets`. Collective over tp.
    Tensor teacher_states(const std::vector<Tensor>& input, const Targets& targets, std::int64_t width,
                          std::int64_t max_local_targets, backend::Arena& arena) const;
    /// Sets wrong[answer] to 1 for every answer of which the arg-max of logits[n, V of this rank], those of
    /// targets [begin, begin + n), misses a token. Collective over tp.
    void compare_answers(const Tensor& logits, const Targets& targets, std::int64_t begin,
                         std::vector<float>& wrong, backend::Arena& arena) const;
    /// Returns the arg-max over the whole vocabulary of each row of logits[n, V of this rank]. Collective
    /// over tp. Zeros on a backend that does not compute.
    std::vector<std::int32_t> argmax_tokens(const Tensor& logits, backend::Arena& arena) const;
    /// Adds the answers and how many are exact to the result of the replica's first rank. Collective over cp.
    void count_answers(std::vector<float>& wrong, backend::Arena& arena, Result& result) const;

    // Decoding.
    /// The position of the row that follows slice row `row` in its sample.
    static std::int32_t position_after(const State& state, std::int64_t row);
    void begin_prompt(const PackedBatch& packed, const State& state);
    void end_prompt(const PackedBatch& packed, const State& state, const Tensor& normed,
                    backend::Arena& scratch);
    /// Returns the most likely token after a row whose hidden state, behind the final norm, one tp rank has
    /// in local[1, C]; the others have none. tp_rows: 1 for that rank, 0 for others. Collective over tp.
    std::int32_t most_likely(const Tensor& local, std::span<const std::int64_t> tp_rows,
                             backend::Arena& arena) const;

    backend::Backend& backend_;
    ModelSpec spec_;
    Role role_;
    Range vocabulary_;  ///< token ids whose embedding and logits this tp rank holds
    /// Of the encoders whose edges deliver embeddings, in the order of these: they expand markers.
    std::vector<Units> expansions_;
    int stream_input_ = -1;  ///< the input edge from the stage before; -1 on the first stage
    parallel::SequenceParallel sequence_parallel_;
    const parallel::Parameter* embedding_;  ///< null after the first stage
    Transformer layers_;
    /// None before the last stage.
    std::optional<Norm> norm_;
    const parallel::Parameter* head_ = nullptr;
    int head_layer_ = 0;  ///< their layer in the parameter store
    /// f64[kSums], of all micro-batches since collect(): the loss; where it has two terms, the parts of the
    /// cross entropy and of the divergence; and what balances experts, which is not part of the loss.
    backend::Buffer sums_;
    static constexpr std::int64_t kBalanceSum = 3, kSums = kBalanceSum + 1;
    Tensor sums(std::int64_t begin, std::int64_t end) const {
        return Tensor(sums_.data(), DType::f64, {kSums}).slice(begin, end);
    }
    std::vector<LossSum> loss_sums_;  ///< of the last collect()
    /// Whether a layer of the stage has experts that are trained and balanced by a loss.
    bool balances_experts_ = false;
    /// By input edge: the teacher's head; null where the edge does not deliver hidden states.
    std::vector<const parallel::Parameter*> teacher_heads_;
    bool worst_case_ = false;
    Continuation* recorded_ = nullptr;  ///< null: forward() records nothing
};

}  // namespace maestro::model
