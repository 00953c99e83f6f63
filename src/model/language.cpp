#include "model/language.hpp"

#include <fmt/format.h>

#include <utility>

#include "backend/host_access.hpp"
#include "model/kind.hpp"
#include "model/language_batch.hpp"
#include "model/teacher_head.hpp"
#include "ops/columns.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

namespace {

RotaryPairs rotary_of(const AttentionForm& form) {
    RotaryPairs pairs = form.rope_sections[0] > 0
                            ? ops::rotary_3d(form.head_dim, form.rope_theta, form.rope_sections)
                            : ops::rotary_1d(form.head_dim, form.rope_theta);
    ops::scale(pairs, form.rope_scaling);
    return pairs;
}

/// Of how many blocks of the model's width an edge's rows consist: the embeddings, and what is added after
/// each of the first layers (DeepStack). 0 for an edge that delivers no embeddings.
int blocks_of(const InputSpec& input) {
    return input.tensor == EdgeTensor::embeddings ? 1 + static_cast<int>(input.from.deepstack.size()) : 0;
}

}  // namespace

Language::Language(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh)
    : Module(backend, role, std::move(mesh)),
      backend_(backend),
      spec_(spec),
      role_(role),
      vocabulary_(mesh_.tp_part(spec.vocabulary)),
      sequence_parallel_(backend, mesh_.tp()),
      embedding_(role.stage.first() ? &declare_by_token("embedding.weight", spec.width, role.trained,
                                                        spec.tie_embeddings && role.stage.count > 1
                                                            ? parallel::Axes(parallel::Axis::tied)
                                                            : parallel::Axes())
                                    : nullptr),
      layers_(backend, spec, role, mesh_, store_),
      sums_(backend, kSums * sizeof(double)) {
    // The losses of a step are summed on the device and in double: downloading each micro-batch's loss would
    // make the host wait for a GPU in every task.
    ops::zero(backend_, sums(0, kSums));
    const int end = role.stage.layers > 0 ? role.stage.first_layer + role.stage.layers : spec.layers;
    balances_experts_ = role.needs_backward && spec.experts.balance == ExpertsSpec::Balance::loss &&
                        spec.experts.in_layer(end - 1);
    expansions_ = role.stage.expansions;
    for (std::size_t e = 0; e < role.inputs.size(); ++e) {
        const InputSpec& input = role.inputs[e];
        const bool embeddings = input.tensor == EdgeTensor::embeddings;
        if (embeddings) expansions_.push_back(input.units);
        MAESTRO_CHECK(blocks_of(input) <= 1 + (role.stage.layers > 0 ? role.stage.layers : spec.layers),
                      "the first stage of {} has fewer layers than its encoder delivers rows for",
                      role.section);
        if (input.tensor == EdgeTensor::stream) stream_input_ = static_cast<int>(e);
    }
    MAESTRO_CHECK((stream_input_ < 0) == role.stage.first(), "stage {} of {}: {} input from the stage before",
                  role.stage.index, role.section, stream_input_ < 0 ? "no" : "an");
    head_layer_ = store_.begin_layer();
    if (role.stage.last()) {
        norm_.emplace(backend, spec.form.norm, spec.norm_eps, store_, "norm", spec.width, role.trained);
        if (!spec.tie_embeddings)
            head_ = &declare_by_token("head.weight", spec.width, role.trained);
        else if (embedding_ != nullptr)
            head_ = embedding_;
        else if (role.computes_loss())  // a copy; elsewhere the head computes nothing
            head_ = &declare_by_token("embedding.weight", spec.width, role.trained, parallel::Axis::tied);
    }
    // The teacher sends its hidden states and the student applies the teacher's head: hidden states are far
    // narrower than logits, so this keeps the traffic of the edge small.
    int teachers = 0;
    for (const InputSpec& input : role.inputs)
        teacher_heads_.push_back(
            input.tensor == EdgeTensor::hidden
                ? &declare_by_token(teacher_head_name(teachers++), input.from.width, false)
                : nullptr);
    for (const LossTerm& term : role_.loss_terms) {
        MAESTRO_CHECK(&term == find_term(term.has_teacher()) &&
                          term.has_teacher() == (term.kind != LossTerm::Kind::cross_entropy),
                      "the loss of {} is not of one cross entropy and one divergence from a teacher",
                      role.section);
        if (term.has_teacher())
            MAESTRO_CHECK(term.edge < std::ssize(teacher_heads_) && teacher_heads_[term.edge],
                          "edge {} of {} delivers no hidden states of a teacher", term.edge, role.section);
    }
}

const parallel::Parameter& Language::declare_by_token(const std::string& name, std::int64_t width,
                                                      bool trained, parallel::Axes replicated) {
    return store_.declare(name, {spec_.vocabulary, width}, parallel::Init::normal, trained,
                          {{vocabulary_, replicated}}, {0, width});
}

void Language::copy_to_device(State& state, backend::Arena& kept, backend::Arena& scratch) const {
    if (role_.stage.first()) {
        state.device_slice_ids = backend::to_device(backend_, state.slice_ids, kept);
        for (const auto& rows : state.embedding_rows)
            state.device_embedding_rows.push_back(backend::to_device(backend_, rows, kept));
    }
    state.tables = layers_.tables(state.sequences, state.slice_positions, kept, scratch);
}

void Language::embed(const State& state, const Tensor& stream, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::span<const std::int64_t> tp_rows = state.sequences.tp_rows;
    // Every tp rank looks up all slice rows in its part of the vocabulary and leaves zeros where it does not
    // have the token, so that the sum over the ranks has each row once. Rows of edges are zero on all ranks.
    const Tensor partial = sequence_parallel_.rows_of_all(stream, tp_rows, scratch);
    ops::embedding(backend_, state.device_slice_ids, embedding_->weight, partial);
    sequence_parallel_.reduce_scatter(partial, stream, tp_rows, scratch);
}

void Language::check_inputs(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                            const State& state) const {
    MAESTRO_CHECK(inputs.size() == role_.inputs.size(), "{} input edges, the role has {}", inputs.size(),
                  role_.inputs.size());
    for (std::size_t e = 0; e < inputs.size(); ++e) {
        MAESTRO_CHECK(inputs[e].size() == batch.samples.size(), "edge {} delivers {} samples of {}", e,
                      inputs[e].size(), batch.samples.size());
        for (std::size_t s = 0; s < inputs[e].size(); ++s)
            MAESTRO_CHECK(inputs[e][s].dim(0) == state.input_rows[e][s],
                          "edge {} delivers {} rows of sample {}, this rank holds {}", e, inputs[e][s].dim(0),
                          batch.samples[s].id, state.input_rows[e][s]);
    }
}

void Language::insert_edge_rows(std::span<const std::vector<Tensor>> inputs, const State& state, int block,
                                const Tensor& stream) const {
    for (std::size_t e = 0; e < inputs.size(); ++e) {
        if (block >= blocks_of(role_.inputs[e])) continue;
        std::int64_t edge_row = 0;
        for (const Tensor& rows : inputs[e]) {
            const Tensor places = state.device_embedding_rows[e].slice(edge_row, edge_row + rows.dim(0));
            ops::copy_columns(backend_, {rows, std::int64_t{block} * spec_.width}, {stream, 0, places},
                              spec_.width, block > 0);
            edge_row += rows.dim(0);
        }
    }
}

void Language::extract_gradients(const State& state, int block, const Tensor& d_stream,
                                 std::span<const Tensor> d_inputs) const {
    for (std::size_t e = 0; e < d_inputs.size(); ++e)
        if (d_inputs[e].rank != 0 && block < blocks_of(role_.inputs[e]))
            ops::copy_columns(backend_, {d_stream, 0, state.device_embedding_rows[e]},
                              {d_inputs[e], std::int64_t{block} * spec_.width}, spec_.width);
}

Tensor Language::input_stream(std::span<const std::vector<Tensor>> inputs, const State& state,
                              backend::Arena& kept, backend::Arena& scratch) const {
    if (stream_input_ >= 0) return layers_.receive(inputs[stream_input_], state.local_rows, kept);
    const Tensor stream = kept.allocate(role_.compute, {state.local_rows, spec_.width});
    embed(state, stream, scratch);
    insert_edge_rows(inputs, state, 0, stream);
    return stream;
}

std::unique_ptr<Saved> Language::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                         backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                         Result& result) {
    const PackedBatch packed = pack(batch);
    auto state = std::make_unique<State>(partition(packed));
    state->sequences.loss_shares = loss_shares(packed, batch.loss_scale);
    if (balances_experts_) state->sequences.balance_loss = sums(kBalanceSum, kSums);
    state->sequences.lane_rows.assign(batch.lane_rows.begin(), batch.lane_rows.end());
    check_inputs(batch, inputs, *state);
    if (recorded_) begin_prompt(packed, *state);
    // A frozen section has no backward pass, which is the only reader of everything but the output: its
    // activations live in scratch memory and are overwritten by the next task.
    backend::Arena& kept = role_.needs_backward ? saved : scratch;
    copy_to_device(*state, kept, scratch);
    const Tensor stream = input_stream(inputs, *state, layers_.keeps_input() ? kept : scratch, scratch);
    state->stack = layers_.forward(
        stream, state->sequences, state->tables, kept, scratch,
        [&](int layer, const Tensor& after) { insert_edge_rows(inputs, *state, 1 + layer, after); });
    if (role_.stage.last())
        finish(batch, inputs, packed, *state, saved, scratch, output, result);
    else
        output = layers_.send(state->stack, saved);
    return state;
}

void Language::finish(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                      const PackedBatch& packed, State& state, backend::Arena& saved, backend::Arena& scratch,
                      Tensor& output, Result& result) {
    store_.layer_needed(head_layer_);
    const DType type = role_.compute;
    backend::Arena& kept = role_.needs_backward ? saved : scratch;
    const Tensor normed = (role_.emits ? saved : kept).allocate(type, {state.local_rows, spec_.width});
    state.norm = norm_->allocate(state.local_rows, type, kept);
    norm_->forward(state.stack.output, normed, state.norm);
    if (recorded_) end_prompt(packed, state, normed, scratch);
    if (role_.emits) output = normed;
    if (!role_.computes_loss()) return;
    if (batch.train && role_.needs_backward) {
        state.d_normed = kept.allocate(type, {state.local_rows, spec_.width});
        // loss() writes the rows that predict a target. All others get no gradient from the loss.
        ops::zero(backend_, state.d_normed);
    }
    loss(batch, inputs, worst_case_ ? worst_case_targets(packed, state) : targets_of(packed, state), normed,
         state.d_normed, scratch, result);
    result.tokens += state.local_rows;
}

void Language::finish_backward(State& state, const Tensor& d_output, const Tensor& d_stream,
                               backend::Arena& scratch) {
    // The gradient of the final norm's output comes from the section's own loss, from the sections that
    // receive its hidden states, or from both.
    Tensor d_normed = state.d_normed;
    if (d_output.rank != 0) {
        if (d_normed.rank == 0)
            d_normed = d_output;
        else
            ops::add(backend_, d_output, d_normed);
    }
    MAESTRO_CHECK(d_normed.rank != 0, "section {} has neither a loss nor a gradient to propagate",
                  role_.section);
    norm_->backward(d_normed, state.stack.output, state.norm, d_stream, false, scratch);
}

void Language::backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                        backend::Arena& scratch) {
    auto& state = static_cast<State&>(saved);
    const backend::ArenaScope scope(scratch);
    // A rank without targets has a zero gradient and still runs the whole backward pass: its collectives
    // include this rank. The gradient for the stage before is computed where it is wanted.
    const bool delivered = stream_input_ >= 0 && d_inputs[stream_input_].rank != 0;
    const Tensor d_stream = delivered ? d_inputs[stream_input_]
                                      : scratch.allocate(role_.compute, {state.local_rows, spec_.width});
    if (role_.stage.last())
        finish_backward(state, d_output, d_stream, scratch);
    else
        ops::convert(backend_, d_output, d_stream);
    store_.layer_final(head_layer_);
    layers_.backward(state.stack, state.sequences, state.tables, d_stream, scratch,
                     [&](int layer, const Tensor& d_output_of_layer) {
                         extract_gradients(state, 1 + layer, d_output_of_layer, d_inputs);
                     });
    if (!role_.stage.first()) return;
    if (embedding_->trainable) {
        // A tp rank adds the rows of all tokens in its part of the vocabulary, whichever rank holds them.
        // With tied embeddings this adds to the head's gradient, which forward() has already left there.
        const backend::ArenaScope gathered(scratch);
        ops::embedding_backward(backend_, state.device_slice_ids,
                                sequence_parallel_.all_gather(d_stream, state.sequences.tp_rows, scratch),
                                embedding_->gradient, scratch);
    }
    // Hidden states come from a frozen teacher, which needs no gradient.
    extract_gradients(state, 0, d_stream, d_inputs);
}

const ModelKind kLanguageKind{
    .kind = ModelSpec::Kind::language,
    .word = "language",
    .head_dim_unit = 2,
    .rotary = rotary_of,
    .units = [](const ModelSpec&) { return Units(); },
    .check_sizes =
        [](const ModelSpec& spec, const Role&) {
            return std::string(spec.vocabulary >= 1 ? "" : "vocabulary must be at least 1");
        },
    .check_samples =
        [](const ModelSpec& spec, const SampleRange& samples) {
            return samples.vocabulary <= spec.vocabulary
                       ? std::string()
                       : fmt::format(
                             "holds token ids up to {}, beyond the vocabulary of {} that model.{} has; "
                             "set it to at least {}",
                             samples.vocabulary - 1, spec.vocabulary, spec.name, samples.vocabulary);
        },
    .make = [](backend::Backend& backend, const ModelSpec& spec, const Role& role,
               parallel::Mesh mesh) -> std::unique_ptr<Module> {
        return std::make_unique<Language>(backend, spec, role, std::move(mesh));
    },
    .before_layers = [](const ModelSpec&) { return std::vector<std::string>{"embedding"}; },
    .split_sizes =
        [](const ModelSpec& spec) {
            return std::vector<std::pair<const char*, int>>{{"vocabulary", spec.vocabulary}};
        },
};

}  // namespace maestro::model
