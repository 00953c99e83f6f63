// Greedy decoding with a cache of keys and values. The ordinary forward pass of a micro-batch of one sample
// fills the cache (Language::record); then the layers compute one row at a time. Training does not
// use this code.
#include <algorithm>
#include <utility>

#include "model/decoding.hpp"
#include "model/language_batch.hpp"
#include "ops/dispatch.hpp"
#include "ops/linear.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

void AttentionBlock::decode(AttentionBlockActivations& a, const Tensor& output,
                            const parallel::Sequences& sequences, std::int64_t layer, KvCache& cache,
                            backend::Arena& scratch) const {
    norm_.forward(a.input, a.normed, a.norm);
    qkv_.forward(a.normed, a.qkv, sequences.tp_rows, scratch);
    make_queries_and_keys(a, sequences, a.attention.q, a.attention.k);
    cache.write(layer, a.attention.k, a.qkv);
    cache.attend(layer, a.attention.q, a.attn_out, a.attention.lse, scratch);
    output_.forward_add(a.attn_out, a.input, output, sequences.tp_rows, scratch);
}

Tensor Transformer::decode(const Tensor& input, const parallel::Sequences& sequences, KvCache& cache,
                           backend::Arena& scratch) const {
    const std::int64_t local = input.dim(0);
    const Tensor outputs[] = {scratch.allocate(type_, {local, spec_.width}),
                              scratch.allocate(type_, {local, spec_.width})};
    cache.begin_row(scratch);
    Tensor stream = input;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        store_.layer_needed(layers_[i].number);
        const backend::ArenaScope scope(scratch);
        AttentionBlockActivations attention =
            layers_[i].attention.allocate(stream, sequences, scratch, scratch);
        const Tensor residual = scratch.allocate(type_, {local, spec_.width});
        layers_[i].attention.decode(attention, residual, sequences, static_cast<std::int64_t>(i), cache,
                                    scratch);
        const FeedForwardActivations mlp = layers_[i].mlp.allocate(residual, sequences, scratch, scratch);
        layers_[i].mlp.forward(mlp, outputs[i % 2], sequences, scratch);
        stream = outputs[i % 2];
    }
    cache.add_rows(1);
    return stream;
}

Continuation Language::make_continuation(std::int64_t rows, backend::Arena& arena) const {
    MAESTRO_CHECK(
        role_.computes_loss() && role_.stage.count == 1 && mesh_.degrees().cp == 1 && !role_.needs_backward,
        "section {} of {} stages with cp {} cannot decode", role_.section, role_.stage.count,
        mesh_.degrees().cp);
    const std::int64_t kv_heads = std::max(spec_.kv_heads / mesh_.degrees().tp, 1);
    return {KvCache(backend_, spec_.layers, kv_heads * spec_.head_dim, role_.compute, rows, arena)};
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
    recorded_->cache.clear();
    recorded_->next_position = position_after(state, rows - 1);
    layers_.record(&recorded_->cache, rows);
}

void Language::end_prompt(const PackedBatch& packed, const State& state, const Tensor& normed,
                          backend::Arena& scratch) {
    const std::int64_t row = packed.targets.front().packed_row, begin = state.first_local_row;
    layers_.record(nullptr, 0);
    recorded_->cache.add_rows(row + 1);
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
    state.slice_positions.assign(ops::axes_of(rotary_), {sequence.next_position});
    copy_to_device(state, scratch, scratch);
    const Tensor stream = scratch.allocate(role_.compute, {state.local_rows, spec_.width});
    embed(state, stream, scratch);
    const Tensor output = layers_.decode(stream, state.sequences, sequence.cache, scratch);
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
    sequence.cache.add_rows(rows - 1);
    sequence.next_token = sequence.next_position = 0;
    language.decode(sequence, memory);
    return memory.peak();
}

}  // namespace maestro::model
