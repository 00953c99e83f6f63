#include "model/language.hpp"

#include <algorithm>

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
/// Rows whose logits exist at a time: as many as a product needs to run at its full rate. More would only
/// take memory, and with a vocabulary of 150,000 each row takes 600 KB.
constexpr std::int64_t kLossRows = 256;
}  // namespace

struct Language::State final : Saved {
    Sequences sequences;
    StackActivations stack;
    std::vector<std::int32_t> ids;                  ///< [T]; -1 where an edge's row stands
    std::vector<std::vector<std::int32_t>> places;  ///< by input edge: rows that its embeddings take
    Tensor rstd;
    Tensor d_normed;  ///< gradient of the loss, where there is one; forward leaves it here
};

/// The rows that predict something, over all samples of the micro-batch.
struct Language::Targets {
    std::vector<std::int32_t> rows, tokens;
    std::vector<float> weights;
    std::vector<std::int32_t> names;   ///< number of the name that a target belongs to; -1: none
    std::vector<std::size_t> samples;  ///< S + 1: targets of each sample
    std::vector<std::int32_t> local;   ///< row within its sample
    std::int32_t name_count = 0;
};

Language::Language(backend::Backend& backend, const ModelSpec& spec, const Role& role, Peers peers)
    : Module(backend, role, std::move(peers)),
      backend_(backend),
      spec_(spec),
      role_(role),
      embedding_(
          &store_.declare("embedding.weight", {spec.vocabulary, spec.width}, Init::normal, role.trained)),
      layers_(backend, spec, role, true, store_),
      norm_(&store_.declare("norm.weight", {spec.width}, Init::ones, role.trained)),
      head_(spec.tie_embeddings
                ? embedding_
                : &store_.declare("head.weight", {spec.vocabulary, spec.width}, Init::normal, role.trained)) {
    // The student applies the teacher's head itself: hidden states are far narrower than logits, and they are
    // what crosses the edge.
    for (const InputSpec& input : role.inputs) {
        const bool teacher = input.tensor == EdgeTensor::hidden;
        teacher_heads_.push_back(teacher ? &store_.declare("teacher_head.weight",
                                                           {spec.vocabulary, input.from.width}, Init::normal,
                                                           false)
                                         : nullptr);
    }
}

void Language::lay_out(const Batch& batch, std::span<const std::vector<Tensor>> inputs, State& state,
                       Targets& targets) const {
    state.sequences.offsets.push_back(0);
    state.places.resize(inputs.size());
    targets.samples.push_back(0);
    for (std::size_t s = 0; s < batch.samples.size(); ++s) {
        const SampleView& sample = batch.samples[s];
        const auto first = static_cast<std::int32_t>(state.ids.size());
        std::size_t picture = 0;
        std::int32_t name = -1;  // of the picture that was seen last
        for (std::size_t j = 0; j < sample.tokens.size(); ++j) {
            if (const std::int32_t token = sample.tokens[j]; token == role_.marker) {
                MAESTRO_CHECK(picture < sample.pictures.size(), "sample {} has more markers than pictures",
                              sample.id);
                const Picture& shown = sample.pictures[picture++];
                name = -1;
                bool replaced = false;
                for (std::size_t e = 0; e < inputs.size(); ++e) {
                    if (role_.inputs[e].tensor != EdgeTensor::embeddings) continue;
                    const std::int64_t rows = picture_tokens(
                        shown.height, shown.width, {role_.inputs[e].from.patch, role_.inputs[e].from.merge});
                    for (std::int64_t r = 0; r < rows; ++r) {
                        state.places[e].push_back(static_cast<std::int32_t>(state.ids.size()));
                        state.ids.push_back(-1);
                    }
                    replaced = true;
                }
                if (!replaced) state.ids.push_back(token);
                continue;
            }
            // A token is predicted by the row before it; without a loss weight its logits are not even
            // computed.
            if (j > 0 && sample.weights[j] != 0.0f) {
                targets.rows.push_back(static_cast<std::int32_t>(state.ids.size()) - 1);
                targets.local.push_back(targets.rows.back() - first);
                targets.tokens.push_back(sample.tokens[j]);
                targets.weights.push_back(sample.weights[j]);
                const bool flagged = picture > 0 && (sample.flags[j] & 1) != 0;
                if (flagged && name < 0) name = targets.name_count++;
                targets.names.push_back(flagged ? name : -1);
            }
            state.ids.push_back(sample.tokens[j]);
        }
        state.sequences.offsets.push_back(static_cast<std::int32_t>(state.ids.size()));
        targets.samples.push_back(targets.rows.size());
    }
}

std::unique_ptr<Saved> Language::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                         backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                         Result& result) {
    MAESTRO_CHECK(inputs.size() == role_.inputs.size(), "{} edges of {}", inputs.size(), role_.inputs.size());
    auto state = std::make_unique<State>();
    Targets targets;
    lay_out(batch, inputs, *state, targets);
    const auto rows = static_cast<std::int64_t>(state->ids.size());
    const DType type = role_.compute, statistics = ops::accumulate_type(type);
    std::vector<std::int32_t> positions(state->ids.size());  // every sample of the packed rows begins at 0
    for (std::size_t s = 0; s + 1 < state->sequences.offsets.size(); ++s)
        for (std::int32_t t = state->sequences.offsets[s]; t < state->sequences.offsets[s + 1]; ++t)
            positions[t] = t - state->sequences.offsets[s];
    state->sequences.cos = saved.allocate(statistics, {rows, spec_.head_dim / 2});
    state->sequences.sin = saved.allocate(statistics, {rows, spec_.head_dim / 2});
    ops::fill_rotary_1d(backend_, positions, spec_.rope_theta, state->sequences.cos, state->sequences.sin);

    // Ids of -1 leave rows of zeros; the edges' rows take their places.
    const Tensor stream = saved.allocate(type, {rows, spec_.width});
    ops::embedding(backend_, state->ids, embedding_->weight, stream);
    for (std::size_t e = 0; e < inputs.size(); ++e) {
        if (role_.inputs[e].tensor != EdgeTensor::embeddings) continue;
        std::size_t at = 0;
        for (const Tensor& rows_of_sample : inputs[e]) {
            const auto count = static_cast<std::size_t>(rows_of_sample.dim(0));
            MAESTRO_CHECK(at + count <= state->places[e].size(),
                          "edge {} brings more rows than there are places", e);
            ops::scatter_rows(backend_, rows_of_sample, std::span(state->places[e]).subspan(at, count),
                              stream);
            at += count;
        }
        MAESTRO_CHECK(at == state->places[e].size(), "edge {} brings {} rows for {} places", e, at,
                      state->places[e].size());
    }
    state->stack = layers_.forward(stream, state->sequences, saved, scratch);

    const Tensor normed = saved.allocate(type, {rows, spec_.width});
    state->rstd = saved.allocate(statistics, {rows});
    ops::rms_norm(backend_, state->stack.output, norm_->weight, normed, state->rstd, spec_.norm_eps);
    if (role_.emits) output = normed;
    if (role_.loss) {
        if (batch.train && role_.needs_backward) {
            state->d_normed = saved.allocate(type, {rows, spec_.width});
            // Rows that predict nothing get no gradient from the loss.
            ops::zero(backend_, state->d_normed);
        }
        loss(batch, inputs, targets, normed, state->d_normed, scratch, result);
        result.tokens += rows;
    }
    return state;
}

void Language::loss(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const Targets& targets,
                    const Tensor& normed, const Tensor& d_normed, backend::Arena& arena, Result& result) {
    const auto total = static_cast<std::int64_t>(targets.rows.size());
    const DType type = role_.compute, logit_type = ops::accumulate_type(type);
    const bool backward = d_normed.rank != 0;
    const auto teacher = std::find_if(teacher_heads_.begin(), teacher_heads_.end(),
                                      [](const Parameter* p) { return p != nullptr; });
    const bool distill = teacher != teacher_heads_.end() && role_.alpha > 0 && batch.train;
    std::vector<std::uint8_t> wrong(static_cast<std::size_t>(targets.name_count), 0);
    std::vector<std::int32_t> best(static_cast<std::size_t>(kLossRows));
    for (std::int64_t begin = 0; begin < total; begin += kLossRows) {
        backend::ArenaScope scope(arena);
        const std::int64_t count = std::min(kLossRows, total - begin);
        const auto part = [&](const auto& list) {
            return std::span(list).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
        };
        const Tensor hidden = arena.allocate(type, {count, spec_.width});
        const Tensor logits = arena.allocate(logit_type, {count, spec_.vocabulary});
        ops::gather_rows(backend_, normed, part(targets.rows), hidden);
        ops::linear(backend_, hidden, head_->weight, logits);
        if (!batch.train) {
            ops::argmax_rows(backend_, logits, std::span(best).first(static_cast<std::size_t>(count)));
            for (std::size_t i = 0; backend_.computes() && i < static_cast<std::size_t>(count); ++i)
                if (const auto name = part(targets.names)[i]; name >= 0 && best[i] != part(targets.tokens)[i])
                    wrong[name] = 1;
        }
        if (distill) {
            const auto edge = static_cast<std::size_t>(teacher - teacher_heads_.begin());
            const Tensor states = arena.allocate(type, {count, (*teacher)->shape[1]});
            const Tensor teacher_logits = arena.allocate(logit_type, {count, spec_.vocabulary});
            for (std::size_t s = 0; s + 1 < targets.samples.size(); ++s) {
                const auto from = std::max(static_cast<std::int64_t>(targets.samples[s]), begin);
                const auto to = std::min(static_cast<std::int64_t>(targets.samples[s + 1]), begin + count);
                if (from < to)
                    ops::gather_rows(
                        backend_, inputs[edge][s],
                        std::span(targets.local)
                            .subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)),
                        states.slice(from - begin, to - begin));
            }
            ops::linear(backend_, states, (*teacher)->weight, teacher_logits);
            result.loss += ops::distillation(backend_, logits, teacher_logits, part(targets.tokens),
                                             part(targets.weights), role_.alpha, role_.temperature,
                                             batch.loss_scale, arena);
        } else {
            result.loss += ops::cross_entropy(backend_, logits, part(targets.tokens), part(targets.weights),
                                              batch.loss_scale);
        }
        if (!backward) continue;
        // The loss has turned the logits into their gradient. In bf16 that is rounded for the two products
        // that follow, as every other gradient of an activation is.
        Tensor d_logits = logits;
        if (type == DType::bf16) {
            d_logits = arena.allocate(type, {count, spec_.vocabulary});
            ops::convert(backend_, logits, d_logits);
        }
        if (role_.trained) ops::linear_backward_weight(backend_, d_logits, hidden, head_->gradient);
        // The hidden rows are of no more use and take their own gradient.
        ops::linear_backward_input(backend_, d_logits, head_->weight, hidden, false);
        ops::scatter_rows(backend_, hidden, part(targets.rows), d_normed);
    }
    if (!batch.train) {
        result.names += targets.name_count;
        result.exact += std::count(wrong.begin(), wrong.end(), std::uint8_t{0});
    }
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
                           norm_->gradient, false);
    layers_.backward(state.stack, state.sequences, d_stream, scratch);
    // With tied embeddings this adds to what forward has put there for the head.
    if (role_.trained) ops::embedding_backward(backend_, state.ids, d_stream, embedding_->gradient);
    for (std::size_t e = 0; e < d_inputs.size(); ++e)
        if (d_inputs[e].rank != 0 && role_.inputs[e].tensor == EdgeTensor::embeddings)
            ops::gather_rows(backend_, d_stream, state.places[e], d_inputs[e]);
}

}  // namespace maestro::model
