// The head and the loss of a language model, over chunks of the targets.
#include <algorithm>
#include <array>

#include "backend/host_access.hpp"
#include "base/check.hpp"
#include "model/language_batch.hpp"
#include "model/logit_chunk.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/dispatch.hpp"
#include "ops/distillation.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/rows.hpp"
#include "ops/softmax_row.hpp"

namespace maestro::model {

Tensor Language::teacher_states(const std::vector<Tensor>& input, const Targets& targets, std::int64_t width,
                                std::int64_t max_local_targets, backend::Arena& arena) const {
    const auto local_targets = static_cast<std::int64_t>(targets.predicting_rows.size());
    const Tensor states = arena.allocate(role_.compute, {max_local_targets, width}).slice(0, local_targets);
    // A teacher delivers every row, so a sample's edge rows are its local rows, counted from its first one.
    std::int64_t first_target = 0, first_local_row = 0;  // of the sample
    for (std::size_t s = 0; s < input.size(); ++s) {
        const std::int64_t end = first_target + targets.local_by_sample[s];
        std::vector<std::int32_t> edge_rows;
        for (std::int64_t i = first_target; i < end; ++i)
            edge_rows.push_back(targets.predicting_rows[i] - static_cast<std::int32_t>(first_local_row));
        const backend::ArenaScope scope(arena);
        if (!edge_rows.empty())
            ops::gather_rows(backend_, input[s], backend::to_device(backend_, edge_rows, arena),
                             states.slice(first_target, end));
        first_target = end;
        first_local_row += input[s].dim(0);
    }
    return sequence_parallel_.all_gather(states, targets.by_tp_rank, arena);
}

std::vector<std::int32_t> Language::argmax_tokens(const Tensor& logits, backend::Arena& arena) const {
    const std::int64_t count = logits.dim(0);
    const int ranks = mesh_.degrees().tp;
    const backend::ArenaScope scope(arena);
    const Tensor ids = arena.allocate(DType::i32, {count, 1}),
                 values = arena.allocate(logits.dtype, {count, 1});
    ops::argmax_rows(backend_, logits, ids.reshape({count}), values.reshape({count}));
    // Each tp rank knows the arg-max over its part of the vocabulary. Gathered, the largest of these is the
    // arg-max over all, and every rank finds the same one.
    const std::vector<std::int64_t> count_by_rank(static_cast<std::size_t>(ranks), count);
    const backend::HostCopy all_ids(backend_, sequence_parallel_.all_gather(ids, count_by_rank, arena)),
        all_values(backend_, sequence_parallel_.all_gather(values, count_by_rank, arena));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count), 0);
    if (!backend_.computes()) return tokens;
    ops::by_logit_type(logits.dtype, [&]<class T>(T) {
        for (std::int64_t i = 0; i < count; ++i) {
            int best = 0;  // on a tie the lower token wins, as on one rank
            const auto value = [&](int rank) { return all_values.tensor().as<T>()[rank * count + i]; };
            for (int rank = 1; rank < ranks; ++rank)
                if (value(rank) > value(best)) best = rank;
            tokens[static_cast<std::size_t>(i)] =
                all_ids.tensor().as<std::int32_t>()[best * count + i] +
                static_cast<std::int32_t>(part_of(spec_.vocabulary, best, ranks).begin);
        }
    });
    return tokens;
}

void Language::compare_answers(const Tensor& logits, const Targets& targets, std::int64_t begin,
                               std::vector<float>& wrong, backend::Arena& arena) const {
    const std::vector<std::int32_t> tokens = argmax_tokens(logits, arena);
    if (!backend_.computes()) return;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::size_t target = static_cast<std::size_t>(begin) + i;
        const std::int32_t answer = targets.answers[target];
        if (answer >= 0 && tokens[i] != targets.tokens[target]) wrong[static_cast<std::size_t>(answer)] = 1;
    }
}

void Language::count_answers(std::vector<float>& wrong, backend::Arena& arena, Result& result) const {
    if (mesh_.degrees().cp > 1) {
        // The tokens of one answer may lie in several slices, and one wrong token makes the answer wrong.
        const Tensor any = arena.allocate(DType::f32, {static_cast<std::int64_t>(wrong.size())});
        backend_.upload(wrong.data(), any);
        mesh_.cp().all_reduce(backend_, any, ops::Reduction::max, arena);
        backend_.download(any, wrong.data());
    }
    if (mesh_.rank_in_replica() != 0) return;  // all ranks know the counts, so only the first reports them
    result.answers += static_cast<std::int64_t>(wrong.size());
    result.exact += std::count(wrong.begin(), wrong.end(), 0.0f);
}

Language::LossInputs Language::loss_inputs(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                           const Targets& targets, const Tensor& normed,
                                           backend::Arena& arena) const {
    LossInputs in;
    in.vocabulary.tokens = vocabulary_;
    if (!sequence_parallel_.single_rank())
        in.vocabulary.combine = [this, &arena](const Tensor& values, ops::Reduction op) {
            sequence_parallel_.group().all_reduce(backend_, values, op, arena);
        };
    in.tokens = backend::to_device(backend_, targets.tokens, arena);
    in.weights = backend::to_device(backend_, targets.weights, arena);
    in.predicting_rows = backend::to_device(backend_, targets.predicting_rows, arena);
    const auto local_targets = static_cast<std::int64_t>(targets.predicting_rows.size());
    // How many of the targets are this rank's depends on where they stand in the samples. Room for the most
    // there can be makes the scratch memory a function of the number of rows alone, which is what is planned.
    const std::int64_t max_local_targets =
        std::min(normed.dim(0), static_cast<std::int64_t>(targets.tokens.size()));
    in.local_hidden = arena.allocate(role_.compute, {max_local_targets, spec_.width}).slice(0, local_targets);
    ops::gather_rows(backend_, normed, in.predicting_rows, in.local_hidden);
    // A tp rank computes the logits of all targets of the slice for its part of the vocabulary, so it needs
    // the hidden states of all of them.
    in.hidden = sequence_parallel_.all_gather(in.local_hidden, targets.by_tp_rank, arena);
    const LossTerm* const divergence = find_term(true);
    if (divergence && batch.train) {
        const auto edge = static_cast<std::size_t>(divergence->edge);
        in.teacher_head = teacher_heads_[edge];
        in.teacher_states =
            teacher_states(inputs[edge], targets, in.teacher_head->shape[1], max_local_targets, arena);
    }
    return in;
}

const LossTerm* Language::find_term(bool with_teacher) const {
    const auto term = std::find_if(role_.loss_terms.begin(), role_.loss_terms.end(),
                                   [&](const LossTerm& t) { return t.has_teacher() == with_teacher; });
    return term == role_.loss_terms.end() ? nullptr : &*term;
}

void Language::loss_of_chunk(const Batch& batch, const LossInputs& in, const Tensor& logits,
                             std::int64_t begin, backend::Arena& arena) const {
    const std::int64_t end = begin + logits.dim(0);
    const LossTerm *entropy = find_term(false), *divergence = find_term(true);
    if (in.teacher_head == nullptr) {
        const double scale = batch.train ? entropy->weight * batch.loss_scale : batch.loss_scale;
        ops::cross_entropy(backend_, logits, in.tokens.slice(begin, end), in.weights.slice(begin, end), scale,
                           in.vocabulary, sums(0, 1), arena);
        return;
    }
    MAESTRO_CHECK(divergence->kind == LossTerm::Kind::forward_kl, "no operation for loss term {}",
                  static_cast<int>(divergence->kind));
    const Tensor teacher_logits = arena.allocate(logits.dtype, {logits.dim(0), vocabulary_.size()});
    ops::linear(backend_, in.teacher_states.slice(begin, end), in.teacher_head->weight, teacher_logits);
    ops::distillation(backend_, logits, teacher_logits, in.tokens.slice(begin, end),
                      in.weights.slice(begin, end),
                      {.hard = entropy ? entropy->weight : 0,
                       .soft = divergence->weight,
                       .temperature = divergence->temperature},
                      batch.loss_scale, in.vocabulary, sums(0, 3), arena);
}

void Language::head_backward(const LossInputs& in, const Tensor& d_logits, std::int64_t begin,
                             backend::Arena& arena) const {
    const Tensor hidden = in.hidden.slice(begin, begin + d_logits.dim(0));
    Tensor rounded = d_logits;
    if (d_logits.dtype != role_.compute) {
        // The two GEMMs that follow take bf16, as every other gradient of an activation does.
        rounded = arena.allocate(role_.compute, {d_logits.dim(0), vocabulary_.size()});
        ops::convert(backend_, d_logits, rounded);
    }
    if (head_->trainable) ops::linear_backward_weight(backend_, rounded, hidden, head_->gradient);
    // The hidden states of this chunk are not read again, so their gradient overwrites them. On several tp
    // ranks it is partial: each rank has only its part of the vocabulary.
    ops::linear_backward_input(backend_, rounded, head_->weight, hidden, false);
}

void Language::loss(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const Targets& targets,
                    const Tensor& normed, const Tensor& d_normed, backend::Arena& arena, Result& result) {
    const bool backward = d_normed.rank != 0;
    const auto total = static_cast<std::int64_t>(targets.tokens.size());
    std::vector<float> wrong(static_cast<std::size_t>(targets.answer_count), 0.0f);  // by answer
    const backend::ArenaScope scope(arena);
    // All tp ranks of a slice have the same number of targets here, so that they run equally many chunks and
    // their collectives match, also where all targets are on one of them.
    const LossInputs in = loss_inputs(batch, inputs, targets, normed, arena);
    const int tp = mesh_.degrees().tp;
    const LogitChunk chunk =
        logit_chunk(backend_.shares_memory(), role_.compute, batch.train, (spec_.vocabulary + tp - 1) / tp,
                    in.teacher_head != nullptr ? 2 : 1);
    for (std::int64_t begin = 0; begin < total; begin += chunk.rows) {
        const backend::ArenaScope chunk_scope(arena);
        const std::int64_t count = std::min(chunk.rows, total - begin);
        const Tensor logits = arena.allocate(chunk.type, {count, vocabulary_.size()});
        ops::linear(backend_, in.hidden.slice(begin, begin + count), head_->weight, logits);
        if (!batch.train) compare_answers(logits, targets, begin, wrong, arena);
        loss_of_chunk(batch, in, logits, begin, arena);
        if (backward) head_backward(in, logits, begin, arena);
    }
    if (backward) {
        // Once for all chunks: each tp rank has gone through all targets of the slice with its part of the
        // vocabulary. The sum over the ranks completes their gradients and returns each to the rank that
        // holds the row.
        sequence_parallel_.reduce_scatter(in.hidden, in.local_hidden, targets.by_tp_rank, arena);
        ops::scatter_rows(backend_, in.local_hidden, in.predicting_rows, d_normed);
    }
    if (!batch.train && targets.answer_count > 0) count_answers(wrong, arena, result);
}

void Language::collect(Result& result) {
    loss_sums_.clear();
    if (!role_.computes_loss() && !balances_experts_) return;
    std::array<double, kSums> found{};
    backend_.download(sums(0, kSums), found.data());
    ops::zero(backend_, sums(0, kSums));
    // The vocabulary-parallel loss gives every tp rank the full loss of the slice: only the first counts it.
    if (mesh_.tp_rank() == 0) {
        result.loss += found[0];
        for (const LossTerm& term : role_.loss_terms) {
            const std::size_t at = role_.loss_terms.size() == 1 ? 0 : term.has_teacher() ? 2 : 1;
            loss_sums_.push_back({kLossNames[static_cast<std::size_t>(term.kind)], found[at] / term.weight});
        }
    }
    // Each rank has the part of the rows that it holds.
    if (balances_experts_) loss_sums_.push_back({"balance", found[kBalanceSum]});
}

}  // namespace maestro::model
