#include "model/language.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/host_access.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/dispatch.hpp"
#include "ops/distillation.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/linear.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"
#include "ops/rows.hpp"

namespace maestro::model {

namespace {
/// Rows whose logits exist at a time: as many as a product needs to run at its full rate, which on a GPU is
/// that of its arithmetic (docs/cuda.md has the roofs). More would only take memory, and with a vocabulary of
/// 150,000 each row takes 600 KB.
std::int64_t loss_rows(const backend::Backend& b) {
    return b.shares_memory() ? 256 : 1024;
}
}  // namespace

struct Language::State final : Saved {
    explicit State(parallel::Sequences s) : sequences(std::move(s)) {}
    parallel::Sequences sequences;
    StackActivations stack;
    /// Of the slice's rows, counted from the first token of this rank's vocabulary; -1 where the token is
    /// another rank's or an edge's row stands.
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> positions;             ///< of the slice's rows, in their sequences
    std::int64_t first = 0, own = 0;                 ///< of the slice's rows those of this rank
    std::vector<std::vector<std::int32_t>> places;   ///< by input edge: own rows that its embeddings take
    std::vector<std::vector<std::int64_t>> brought;  ///< by input edge, by sample: own rows that it brings
    Tensor given_ids;                                ///< on the device, as the next
    std::vector<Tensor> given_places;
    Tensor rstd;
    Tensor d_normed;  ///< gradient of the loss, where there is one; forward leaves it here
};

/// All samples of the micro-batch, one after another.
struct Language::Packed {
    struct Target {  ///< a row that predicts something
        std::int32_t row, token;
        float weight;
        std::int32_t name;  ///< number of the name that it belongs to; -1: none
    };
    std::vector<std::int64_t> lengths;  ///< by sample
    std::vector<std::int32_t> ids;      ///< by row; -1 - e where a row of input edge e stands
    std::vector<Target> targets;
    std::int32_t names = 0;
};

/// Those of the slice, the tp ranks' one after another.
struct Language::Targets {
    std::vector<std::int32_t> tokens, names;
    std::vector<float> weights;
    std::vector<std::int64_t> shares;  ///< of each tp rank
    std::int32_t name_count = 0;
    std::vector<std::int32_t> rows;       ///< of this rank's targets: which of its rows predicts
    std::vector<std::int64_t> by_sample;  ///< how many of them each sample has
};

Language::Language(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Peers peers)
    : Module(backend, role, std::move(peers)),
      backend_(backend),
      spec_(spec),
      role_(role),
      vocabulary_(peers_.tp_part(spec.vocabulary)),
      shares_(backend, *peers_.tensor),
      embedding_(&store_.declare("embedding.weight", {spec.vocabulary, spec.width}, parallel::Init::normal,
                                 role.trained, {{vocabulary_}, {0, spec.width}})),
      layers_(backend, spec, role, peers_, store_),
      norm_(&store_.declare("norm.weight", {spec.width}, parallel::Init::ones, role.trained)),
      head_(spec.tie_embeddings
                ? embedding_
                : &store_.declare("head.weight", {spec.vocabulary, spec.width}, parallel::Init::normal,
                                  role.trained, {{vocabulary_}, {0, spec.width}})),
      loss_(backend, sizeof(double)) {
    ops::zero(backend_, Tensor(loss_.data(), DType::f64, {1}));
    // The student applies the teacher's head itself: hidden states are far narrower than logits, and they are
    // what crosses the edge.
    for (const InputSpec& input : role.inputs) {
        const bool teacher = input.tensor == EdgeTensor::hidden;
        teacher_heads_.push_back(
            teacher ? &store_.declare("teacher_head.weight", {spec.vocabulary, input.from.width},
                                      parallel::Init::normal, false, {{vocabulary_}, {0, input.from.width}})
                    : nullptr);
    }
}

Language::Packed Language::pack(const Batch& batch) const {
    Packed packed;
    for (const SampleView& sample : batch.samples) {
        const std::size_t first = packed.ids.size();
        std::size_t picture = 0;
        std::int32_t name = -1;  // of the picture that was seen last
        for (std::size_t j = 0; j < sample.tokens.size(); ++j) {
            if (const std::int32_t token = sample.tokens[j]; token == role_.marker) {
                MAESTRO_CHECK(picture < sample.pictures.size(), "sample {} has more markers than pictures",
                              sample.id);
                const Picture& shown = sample.pictures[picture++];
                name = -1;
                bool replaced = false;
                for (std::size_t e = 0; e < role_.inputs.size(); ++e) {
                    if (role_.inputs[e].tensor != EdgeTensor::embeddings) continue;
                    const std::int64_t rows = picture_tokens(
                        shown.height, shown.width, {role_.inputs[e].from.patch, role_.inputs[e].from.merge});
                    packed.ids.insert(packed.ids.end(), static_cast<std::size_t>(rows),
                                      -1 - static_cast<std::int32_t>(e));
                    replaced = true;
                }
                if (!replaced) packed.ids.push_back(token);
                continue;
            }
            // A token is predicted by the row before it; without a loss weight its logits are not even
            // computed.
            if (j > 0 && sample.weights[j] != 0.0f) {
                const bool flagged = picture > 0 && (sample.flags[j] & 1) != 0;
                if (flagged && name < 0) name = packed.names++;
                packed.targets.push_back({.row = static_cast<std::int32_t>(packed.ids.size()) - 1,
                                          .token = sample.tokens[j],
                                          .weight = sample.weights[j],
                                          .name = flagged ? name : -1});
            }
            packed.ids.push_back(sample.tokens[j]);
        }
        packed.lengths.push_back(static_cast<std::int64_t>(packed.ids.size() - first));
    }
    return packed;
}

Language::State Language::share_out(const Packed& packed) const {
    State state(
        parallel::Sequences(parallel::Partition(packed.lengths, parallel::Attention::causal, peers_.degrees),
                            parallel::Attention::causal, peers_));
    const parallel::Partition& partition = state.sequences.partition;
    const auto slice = partition.slice(peers_.cp());
    state.ids = parallel::pick(packed.ids, slice, partition.offsets());
    for (std::int32_t& id : state.ids)
        id = id >= vocabulary_.begin && id < vocabulary_.end
                 ? id - static_cast<std::int32_t>(vocabulary_.begin)
                 : -1;
    for (const parallel::RowRun& run : slice)  // those of the sample, whatever part of it is here
        for (std::int64_t row = run.first; row < run.first + run.count; ++row)
            state.positions.push_back(static_cast<std::int32_t>(row));
    const auto& shares = state.sequences.shares;
    state.first = std::accumulate(shares.begin(), shares.begin() + peers_.tp(), std::int64_t{0});
    state.own = shares[static_cast<std::size_t>(peers_.tp())];
    state.places.resize(role_.inputs.size());
    state.brought.assign(role_.inputs.size(), std::vector<std::int64_t>(packed.lengths.size(), 0));
    std::int32_t own = 0;
    for (const parallel::RowRun& run : partition.runs(peers_.cp(), peers_.tp()))
        for (std::int64_t row = run.first; row < run.first + run.count; ++row, ++own) {
            const std::int32_t id = packed.ids[partition.offsets()[run.sequence] + row];
            for (std::size_t e = 0; e < role_.inputs.size(); ++e) {
                const bool place = id == -1 - static_cast<std::int32_t>(e);
                if (place) state.places[e].push_back(own);
                if (place || role_.inputs[e].tensor == EdgeTensor::hidden) ++state.brought[e][run.sequence];
            }
        }
    return state;
}

Language::Targets Language::targets_of(const Packed& packed, const State& state, bool any_order) const {
    const parallel::Partition& partition = state.sequences.partition;
    if (any_order) {  // on paper: as many as there may be in a slice, in its first rows
        Targets most;
        std::int64_t left = std::min(state.sequences.rows, static_cast<std::int64_t>(packed.targets.size()));
        most.tokens.assign(static_cast<std::size_t>(left), 0);
        most.names.assign(static_cast<std::size_t>(left), -1);
        most.weights.assign(static_cast<std::size_t>(left), 1.0f);
        for (const std::int64_t rows : state.sequences.shares) {
            most.shares.push_back(std::min(rows, left));
            left -= most.shares.back();
        }
        most.rows.assign(static_cast<std::size_t>(most.shares[static_cast<std::size_t>(peers_.tp())]), 0);
        most.by_sample.assign(packed.lengths.size(), 0);
        if (!most.by_sample.empty()) most.by_sample[0] = static_cast<std::int64_t>(most.rows.size());
        return most;
    }
    std::vector<std::int32_t> in_slice(packed.ids.size(), -1);
    std::int32_t next = 0;
    for (const parallel::RowRun& run : partition.slice(peers_.cp()))
        for (std::int64_t row = run.first; row < run.first + run.count; ++row)
            in_slice[partition.offsets()[run.sequence] + row] = next++;
    Targets targets;
    targets.name_count = packed.names;
    targets.shares.assign(state.sequences.shares.size(), 0);
    targets.by_sample.assign(packed.lengths.size(), 0);
    std::size_t sample = 0, tp = 0;
    std::int64_t end = state.sequences.shares[0];  // of the rows of rank tp in the slice
    for (const Packed::Target& target : packed.targets) {
        while (target.row >= partition.offsets()[sample + 1]) ++sample;
        const std::int32_t row = in_slice[target.row];
        if (row < 0) continue;
        while (row >= end) end += state.sequences.shares[++tp];
        ++targets.shares[tp];
        targets.tokens.push_back(target.token);
        targets.weights.push_back(target.weight);
        targets.names.push_back(target.name);
        if (static_cast<int>(tp) != peers_.tp()) continue;
        targets.rows.push_back(row - static_cast<std::int32_t>(state.first));
        ++targets.by_sample[sample];
    }
    return targets;
}

std::vector<std::vector<std::int64_t>> Language::input_rows(const Batch& batch) const {
    return share_out(pack(batch)).brought;
}

std::unique_ptr<Saved> Language::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                         backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                         Result& result) {
    MAESTRO_CHECK(inputs.size() == role_.inputs.size(), "{} edges of {}", inputs.size(), role_.inputs.size());
    const Packed packed = pack(batch);
    auto state = std::make_unique<State>(share_out(packed));
    parallel::Sequences& sequences = state->sequences;
    const DType type = role_.compute, statistics = ops::accumulate_type(type);
    sequences.cos = saved.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    sequences.sin = saved.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    state->given_ids = backend::given(backend_, state->ids, saved);
    for (const auto& places : state->places)
        state->given_places.push_back(backend::given(backend_, places, saved));
    sequences.hand_over(backend_, saved);
    {
        const backend::ArenaScope scope(scratch);
        ops::fill_rotary_1d(backend_, backend::given(backend_, state->positions, scratch), spec_.rope_theta,
                            sequences.cos, sequences.sin);
    }

    // Ids of -1 leave rows of zeros; the edges' rows take their places.
    const Tensor stream = saved.allocate(type, {state->own, spec_.width});
    {
        const backend::ArenaScope scope(scratch);
        const Tensor part = shares_.part(stream, sequences.shares, scratch);
        ops::embedding(backend_, state->given_ids, embedding_->weight, part);
        shares_.sum(part, stream, sequences.shares, scratch);
    }
    for (std::size_t e = 0; e < inputs.size(); ++e) {
        MAESTRO_CHECK(inputs[e].size() == batch.samples.size(), "edge {} brings {} samples", e,
                      inputs[e].size());
        std::int64_t at = 0;
        for (std::size_t s = 0; s < inputs[e].size(); ++s) {
            const std::int64_t rows = inputs[e][s].dim(0);
            MAESTRO_CHECK(rows == state->brought[e][s], "edge {} brings {} rows of sample {} for {} places",
                          e, rows, batch.samples[s].id, state->brought[e][s]);
            if (role_.inputs[e].tensor != EdgeTensor::embeddings) continue;
            ops::scatter_rows(backend_, inputs[e][s], state->given_places[e].slice(at, at + rows), stream);
            at += rows;
        }
    }
    state->stack = layers_.forward(stream, sequences, saved, scratch);

    const Tensor normed = saved.allocate(type, {state->own, spec_.width});
    state->rstd = saved.allocate(statistics, {state->own});
    ops::rms_norm(backend_, state->stack.output, norm_->weight, normed, state->rstd, spec_.norm_eps);
    if (role_.emits) output = normed;
    if (role_.loss) {
        if (batch.train && role_.needs_backward) {
            state->d_normed = saved.allocate(type, {state->own, spec_.width});
            // Rows that predict nothing get no gradient from the loss.
            ops::zero(backend_, state->d_normed);
        }
        loss(batch, inputs, targets_of(packed, *state, batch.any_order), normed, state->d_normed, scratch,
             result);
        result.tokens += state->own;
    }
    return state;
}

void Language::loss(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const Targets& targets,
                    const Tensor& normed, const Tensor& d_normed, backend::Arena& arena, Result& result) {
    const auto total = static_cast<std::int64_t>(targets.tokens.size());
    const DType type = role_.compute, logit_type = ops::accumulate_type(type);
    const bool backward = d_normed.rank != 0;
    const auto teacher = std::find_if(teacher_heads_.begin(), teacher_heads_.end(),
                                      [](const parallel::Parameter* p) { return p != nullptr; });
    const bool distill = teacher != teacher_heads_.end() && role_.alpha > 0 && batch.train;
    ops::VocabularyPart vocabulary{vocabulary_, {}};
    if (!shares_.alone())
        vocabulary.combine = [&](const Tensor& values, ops::Reduction how) {
            shares_.group().all_reduce(backend_, values, how, arena);
        };
    MAESTRO_CHECK(batch.train || peers_.degrees.ranks() == 1, "names are compared on one rank, not {}",
                  peers_.degrees.ranks());
    const std::int64_t at_once = loss_rows(backend_);
    std::vector<std::uint8_t> wrong(static_cast<std::size_t>(targets.name_count), 0);
    std::vector<std::int32_t> best(static_cast<std::size_t>(at_once));
    const backend::ArenaScope whole(arena);
    const Tensor tokens = backend::given(backend_, targets.tokens, arena),
                 weights = backend::given(backend_, targets.weights, arena),
                 predicting = backend::given(backend_, targets.rows, arena);
    const auto own = static_cast<std::int64_t>(targets.rows.size());
    // Every tp rank needs the rows that predict of all of them, for its part of the vocabulary.
    // They may all be this rank's: room for that many makes the scratch grow with the rows alone.
    const std::int64_t most = std::min(normed.dim(0), total);
    const Tensor own_hidden = arena.allocate(type, {most, spec_.width}).slice(0, own);
    ops::gather_rows(backend_, normed, predicting, own_hidden);
    const Tensor all_hidden = shares_.gather(own_hidden, targets.shares, arena);
    Tensor all_states;
    if (distill) {
        const auto& came = inputs[static_cast<std::size_t>(teacher - teacher_heads_.begin())];
        const Tensor own_states = arena.allocate(type, {most, (*teacher)->shape[1]}).slice(0, own);
        std::int64_t at = 0, before = 0;  // of this rank's targets and rows, those of earlier samples
        for (std::size_t s = 0; s < came.size(); ++s) {
            std::vector<std::int32_t> rows;
            for (std::int64_t i = at; i < at + targets.by_sample[s]; ++i)
                rows.push_back(targets.rows[i] - static_cast<std::int32_t>(before));
            const backend::ArenaScope scope(arena);
            if (!rows.empty())
                ops::gather_rows(backend_, came[s], backend::given(backend_, rows, arena),
                                 own_states.slice(at, at + targets.by_sample[s]));
            at += targets.by_sample[s];
            before += came[s].dim(0);
        }
        all_states = shares_.gather(own_states, targets.shares, arena);
    }
    const Tensor sum(loss_.data(), DType::f64, {1});
    for (std::int64_t begin = 0; begin < total; begin += at_once) {
        backend::ArenaScope scope(arena);
        const std::int64_t count = std::min(at_once, total - begin);
        const Tensor some_tokens = tokens.slice(begin, begin + count),
                     some_weights = weights.slice(begin, begin + count);
        const Tensor hidden = all_hidden.slice(begin, begin + count);
        const Tensor logits = arena.allocate(logit_type, {count, vocabulary_.size()});
        ops::linear(backend_, hidden, head_->weight, logits);
        if (!batch.train) {
            const Tensor found = arena.allocate(DType::i32, {count});
            ops::argmax_rows(backend_, logits, found);
            backend_.download(found, best.data());
            for (std::int64_t i = 0; backend_.computes() && i < count; ++i)
                if (const auto name = targets.names[begin + i];
                    name >= 0 && best[i] != targets.tokens[begin + i])
                    wrong[name] = 1;
        }
        if (distill) {
            const Tensor teacher_logits = arena.allocate(logit_type, {count, vocabulary_.size()});
            ops::linear(backend_, all_states.slice(begin, begin + count), (*teacher)->weight, teacher_logits);
            ops::distillation(backend_, logits, teacher_logits, some_tokens, some_weights, role_.alpha,
                              role_.temperature, batch.loss_scale, vocabulary, sum, arena);
        } else {
            ops::cross_entropy(backend_, logits, some_tokens, some_weights, batch.loss_scale, vocabulary, sum,
                               arena);
        }
        if (!backward) continue;
        // The loss has turned the logits into their gradient. In bf16 that is rounded for the two products
        // that follow, as every other gradient of an activation is.
        Tensor d_logits = logits;
        if (type == DType::bf16) {
            d_logits = arena.allocate(type, {count, vocabulary_.size()});
            ops::convert(backend_, logits, d_logits);
        }
        if (role_.trained) ops::linear_backward_weight(backend_, d_logits, hidden, head_->gradient);
        // The hidden rows are of no more use and take their own gradient.
        ops::linear_backward_input(backend_, d_logits, head_->weight, hidden, false);
    }
    if (backward) {
        shares_.sum(all_hidden, own_hidden, targets.shares, arena);
        ops::scatter_rows(backend_, own_hidden, predicting, d_normed);
    }
    if (!batch.train) {
        result.names += targets.name_count;
        result.exact += std::count(wrong.begin(), wrong.end(), std::uint8_t{0});
    }
}

void Language::collect(Result& result) {
    if (!role_.loss) return;
    const Tensor sum(loss_.data(), DType::f64, {1});
    double found = 0;
    backend_.download(sum, &found);
    ops::zero(backend_, sum);
    if (peers_.tp() == 0) result.loss += found;  // the other tp ranks find the same
}

void Language::backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                        backend::Arena& scratch) {
    auto& state = static_cast<State&>(saved);
    backend::ArenaScope scope(scratch);
    Tensor d_normed = state.d_normed;
    if (d_output.rank != 0) {
        if (d_normed.rank == 0)
            d_normed = d_output;
        else
            ops::add(backend_, d_output, d_normed);
    }
    MAESTRO_CHECK(d_normed.rank != 0, "section {} has neither a loss nor a gradient to run back",
                  role_.section);
    const Tensor d_stream = scratch.allocate(role_.compute, {d_normed.dim(0), spec_.width});
    ops::rms_norm_backward(backend_, d_normed, state.stack.output, norm_->weight, state.rstd, d_stream,
                           norm_->gradient, false, scratch);
    layers_.backward(state.stack, state.sequences, d_stream, scratch);
    // With tied embeddings this adds to what forward has put there for the head.
    if (role_.trained) {
        const backend::ArenaScope gathered(scratch);
        ops::embedding_backward(backend_, state.given_ids,
                                shares_.gather(d_stream, state.sequences.shares, scratch),
                                embedding_->gradient, scratch);
    }
    for (std::size_t e = 0; e < d_inputs.size(); ++e)
        if (d_inputs[e].rank != 0 && role_.inputs[e].tensor == EdgeTensor::embeddings)
            ops::gather_rows(backend_, d_stream, state.given_places[e], d_inputs[e]);
}

}  // namespace maestro::model
