// Greedy decoding with what the layers have kept of the rows before, such as their keys and values. The
// ordinary forward pass of a micro-batch of one sample fills that state (Language::record); then the layers
// compute one row at a time. Training does not use this code.
#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "model/decoding.hpp"
#include "model/language_batch.hpp"
#include "ops/dispatch.hpp"
#include "ops/linear.hpp"

namespace maestro::model {

KvCache AttentionBlock::make_state(std::int64_t layers, std::int64_t rows, backend::Arena& arena) const {
    return {backend_, layers, kv_heads_ * form_.head_dim, type_, rows, arena};
}

void AttentionBlock::record(const AttentionBlockActivations& a, std::int64_t rows, std::int64_t layer,
                            KvCache& cache) const {
    cache.write(layer, a.attention.k.slice(0, rows), a.qkv.slice(0, rows));
}

void AttentionBlock::decode(AttentionBlockActivations& a, const Tensor& output,
                            const parallel::Sequences& sequences, const AttentionBlockTables& tables,
                            std::int64_t layer, KvCache& cache, backend::Arena& scratch) const {
    norm_.forward(a.input, a.normed, a.norm);
    qkv_.forward(a.normed, a.qkv, sequences.tp_rows, scratch);
    make_queries_and_keys(a, tables, a.attention.q, a.attention.k);
    cache.write(layer, a.attention.k, a.qkv);
    cache.attend(layer, a.attention.q, a.attn_out, a.attention.lse, scratch);
    output_.forward_add(a.attn_out, a.input, output, sequences.tp_rows, scratch);
}

void DecodingState::clear() {
    for (MixerState& state : forms_) std::visit([](auto& of) { of.clear(); }, state);
    length_ = 0;
}

void DecodingState::add_rows(std::int64_t rows) {
    for (MixerState& state : forms_) std::visit([&](auto& of) { of.add_rows(rows); }, state);
    length_ += rows;
}

void DecodingState::begin_row(backend::Arena& scratch) {
    for (MixerState& state : forms_) std::visit([&](auto& of) { of.begin_row(scratch); }, state);
}

DecodingState Transformer::make_state(std::int64_t rows, backend::Arena& arena) const {
    std::vector<MixerState> forms;
    for (const Form& form : forms_)
        forms.push_back(layers_[form.first].mixer.make_state(form.layers, rows, arena));
    return DecodingState(std::move(forms));
}

Tensor Transformer::decode(const Tensor& input, const parallel::Sequences& sequences,
                           std::span<const MixerTables> tables, DecodingState& state,
                           backend::Arena& scratch) const {
    const std::int64_t local = input.dim(0);
    const Tensor outputs[] = {scratch.allocate(type_, {local, spec_.width}),
                              scratch.allocate(type_, {local, spec_.width})};
    state.begin_row(scratch);
    Tensor stream = input;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        store_.layer_needed(layer.number);
        const backend::ArenaScope scope(scratch);
        MixerActivations mixer = layer.mixer.allocate(stream, sequences, scratch, scratch);
        const Tensor residual = scratch.allocate(type_, {local, spec_.width});
        layer.mixer.decode(mixer, residual, sequences, tables[layer.form], layer.of_form,
                           state.of(layer.form), scratch);
        const FeedForwardActivations mlp = layer.mlp.allocate(residual, sequences, scratch, scratch);
        layer.mlp.forward(mlp, outputs[i % 2], sequences, scratch);
        stream = outputs[i % 2];
    }
    state.add_rows(1);
    return stream;
}

Continuation Language::make_continuation(std::int64_t rows, backend::Arena& arena) const {
    MAESTRO_CHECK(
        role_.computes_loss() && role_.stage.count == 1 && mesh_.degrees().cp == 1 && !role_.needs_backward,
        "section {} of {} stages with cp {} cannot decode", role_.section, role_.stage.count,
        mesh_.degrees().cp);
    return {layers_.make_state(rows, arena)};
}

std::int32_t Language::position_after(const State& state, std::int64_t row) {
    // The last token of a picture is at its lower right, and what follows stands behind the longer side.
    std::int32_t last = 0;
    for (const std::vector<std::int32_t>& along_axis : state.slice_positions)
        last = std::max(last, along_axis[static_cast<std::size_t>(row)]);
    return last + 1;
}

void Language::begin_prompt(const PackedBatch& packed, const State& state) {
    MAESTRO_CHECK(packed.lengths.size() == 1 && !packed.targets.empty(), "{} samples and {} targets",
                  packed.lengths.size(), packed.targets.size());
    const std::int64_t rows = packed.targets.front().packed_row + 1;
    recorded_->layers.clear();
    recorded_->next_position = position_after(state, rows - 1);
    layers_.record(&recorded_->layers, rows);
}

void Language::end_prompt(const PackedBatch& packed, const State& state, const Tensor& normed,
                          backend::Arena& scratch) {
    const std::int64_t row = packed.targets.front().packed_row, begin = state.first_local_row;
    layers_.record(nullptr, 0);
    recorded_->layers.add_rows(row + 1);
    std::vector<std::int64_t> by_tp_rank;
    std::int64_t first = 0;
    for (const std::int64_t rows : state.sequences.tp_rows) {
        by_tp_rank.push_back(row >= first && row < first + rows ? 1 : 0);
        first += rows;
    }
    const bool here = row >= begin && row < begin + state.local_rows;
    const Tensor local = here ? normed.slice(row - begin, row - begin + 1) : normed.slice(0, 0);
    recorded_->next_token = most_likely(local, by_tp_rank, scratch);
}

std::int32_t Language::most_likely(const Tensor& local, std::span<const std::int64_t> tp_rows,
                                   backend::Arena& arena) const {
    const backend::ArenaScope scope(arena);
    const Tensor hidden = sequence_parallel_.all_gather(local, tp_rows, arena);
    const Tensor logits = arena.allocate(ops::accumulate_type(role_.compute), {1, vocabulary_.size()});
    ops::linear(backend_, hidden, head_->weight, logits);
    return argmax_tokens(logits, arena).front();
}

void Language::decode(Continuation& sequence, backend::Arena& scratch) {
    const backend::ArenaScope scope(scratch);
    PackedBatch packed;
    packed.lengths = {1};
    packed.ids = {sequence.next_token};
    State state = partition(packed);
    state.slice_positions.assign(position_axes(spec_), {sequence.next_position});
    copy_to_device(state, scratch, scratch);
    const Tensor stream = scratch.allocate(role_.compute, {state.local_rows, spec_.width});
    embed(state, stream, scratch);
    const Tensor output = layers_.decode(stream, state.sequences, state.tables, sequence.layers, scratch);
    const Tensor normed = scratch.allocate(role_.compute, {state.local_rows, spec_.width});
    norm_->forward(output, normed, norm_->allocate(state.local_rows, role_.compute, scratch));
    sequence.next_token = most_likely(normed, state.sequences.tp_rows, scratch);
    sequence.next_position = position_after(state, 0);
}

std::size_t decoding_bytes(const ModelSpec& spec, const Role& role, std::int64_t rows,
                           const backend::Traits& traits, parallel::Mesh mesh) {
    const auto meta = backend::make_meta({}, traits);
    const auto module = make_module(*meta, spec, role, std::move(mesh), InitialWeights::zeros);
    auto& language = dynamic_cast<Language&>(*module);
    backend::Arena memory;
    Continuation sequence = language.make_continuation(rows, memory);
    sequence.layers.add_rows(rows - 1);
    sequence.next_token = sequence.next_position = 0;
    language.decode(sequence, memory);
    return memory.peak();
}

}  // namespace maestro::model
