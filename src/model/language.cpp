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
#include "ops/softmax_row.hpp"

namespace maestro::model {

namespace {
/// Rows whose logits exist at a time: as many as a matrix product needs to run at its full rate, which on a
/// GPU is bound by arithmetic (docs/cuda.md has the roofline). More would only take memory: with a vocabulary
/// of 150,000 each row takes 600 KB.
std::int64_t loss_rows(const backend::Backend& b) {
    return b.shares_memory() ? 256 : 1024;
}
}  // namespace

/// The rows of the whole micro-batch, and what is to be predicted in it.
struct Language::PackedBatch {
    struct Target {
        std::int32_t row, token;  ///< packed row that predicts, and what
        float weight;
        std::int32_t name;  ///< number of the name that the token belongs to; -1: none
    };
    std::vector<std::int64_t> lengths;  ///< rows of each sample
    std::vector<std::int32_t> ids;      ///< by row; -1 - e where a row of input edge e stands
    std::vector<Target> targets;
    std::int32_t names = 0;
};

struct Language::State final : Saved {
    explicit State(parallel::Sequences s) : sequences(std::move(s)) {}
    parallel::Sequences sequences;
    StackActivations stack;
    /// By row of the slice: its id, counted from the first token of this rank's vocabulary; -1 where the
    /// token is another rank's or a row of an edge stands.
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> positions;            ///< by row of the slice: its position in the sample
    std::int64_t first_local = 0, local = 0;        ///< rows of the slice that are this rank's
    std::vector<std::vector<std::int32_t>> places;  ///< by input edge: local rows that its embeddings fill
    /// By input edge, by sample: local rows that the edge brings.
    std::vector<std::vector<std::int64_t>> input_rows;
    Tensor device_ids;
    std::vector<Tensor> device_places;
    Tensor rstd;
    Tensor d_normed;  ///< gradient of the loss, where there is one; forward leaves it here
};

/// Of the slice, those of the first tp rank first.
struct Language::Targets {
    std::vector<std::int32_t> tokens, names;
    std::vector<float> weights;
    std::vector<std::int64_t> by_tp_rank;  ///< how many each tp rank has
    std::int32_t name_count = 0;
    std::vector<std::int32_t> local_rows;       ///< of this rank's targets: which local row predicts
    std::vector<std::int64_t> local_by_sample;  ///< how many of them each sample has
};

Language::Language(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh)
    : Module(backend, role, std::move(mesh)),
      backend_(backend),
      spec_(spec),
      role_(role),
      vocabulary_(mesh_.tp_part(spec.vocabulary)),
      sequence_parallel_(backend, mesh_.tp()),
      embedding_(&store_.declare("embedding.weight", {spec.vocabulary, spec.width}, parallel::Init::normal,
                                 role.trained, {{vocabulary_}}, {0, spec.width})),
      layers_(backend, spec, role, mesh_, store_),
      norm_(&store_.declare("norm.weight", {spec.width}, parallel::Init::ones, role.trained)),
      head_(spec.tie_embeddings
                ? embedding_
                : &store_.declare("head.weight", {spec.vocabulary, spec.width}, parallel::Init::normal,
                                  role.trained, {{vocabulary_}}, {0, spec.width})),
      loss_(backend, sizeof(double)) {
    ops::zero(backend_, Tensor(loss_.data(), DType::f64, {1}));
    // The student applies the teacher's head itself: hidden states are far narrower than logits, and they are
    // what crosses the edge.
    for (const InputSpec& input : role.inputs) {
        const bool teacher = input.tensor == EdgeTensor::hidden;
        teacher_heads_.push_back(
            teacher ? &store_.declare("teacher_head.weight", {spec.vocabulary, input.from.width},
                                      parallel::Init::normal, false, {{vocabulary_}}, {0, input.from.width})
                    : nullptr);
    }
}

Language::PackedBatch Language::pack(const Batch& batch) const {
    PackedBatch packed;
    for (const SampleView& sample : batch.samples) {
        const std::size_t first = packed.ids.size();
        std::size_t picture = 0;
        std::int32_t name = -1;  // that of the last picture
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
            // The row before a token predicts it. Without a loss weight its logits are not even computed.
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

Language::State Language::partition(const PackedBatch& packed) const {
    using parallel::AttentionMask;
    State state(
        parallel::Sequences(parallel::Partition(packed.lengths, AttentionMask::causal, mesh_.degrees()),
                            AttentionMask::causal, mesh_));
    const parallel::Partition& partition = state.sequences.partition;
    const auto slice = partition.slice(mesh_.cp_rank());
    state.ids = parallel::pick(packed.ids, slice, partition.offsets());
    for (std::int32_t& id : state.ids)
        id = id >= vocabulary_.begin && id < vocabulary_.end
                 ? id - static_cast<std::int32_t>(vocabulary_.begin)
                 : -1;
    // Positions count from the start of the sample, whichever part of it is in this slice.
    for (const parallel::RowRange& range : slice)
        for (std::int64_t row = range.first; row < range.first + range.count; ++row)
            state.positions.push_back(static_cast<std::int32_t>(row));
    const auto& tp_rows = state.sequences.tp_rows;
    state.first_local = std::accumulate(tp_rows.begin(), tp_rows.begin() + mesh_.tp_rank(), std::int64_t{0});
    state.local = tp_rows[static_cast<std::size_t>(mesh_.tp_rank())];
    state.places.resize(role_.inputs.size());
    state.input_rows.assign(role_.inputs.size(), std::vector<std::int64_t>(packed.lengths.size(), 0));
    std::int32_t local = 0;
    for (const parallel::RowRange& range : partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank()))
        for (std::int64_t row = range.first; row < range.first + range.count; ++row, ++local) {
            const std::int32_t id = packed.ids[partition.offsets()[range.sequence] + row];
            for (std::size_t e = 0; e < role_.inputs.size(); ++e) {
                const bool fills = id == -1 - static_cast<std::int32_t>(e);
                if (fills) state.places[e].push_back(local);
                if (fills || role_.inputs[e].tensor == EdgeTensor::hidden)
                    ++state.input_rows[e][range.sequence];
            }
        }
    return state;
}

Language::Targets Language::worst_case_targets(const PackedBatch& packed, const State& state) const {
    std::int64_t left = std::min(state.sequences.rows, static_cast<std::int64_t>(packed.targets.size()));
    Targets most;
    most.tokens.assign(static_cast<std::size_t>(left), 0);
    most.names.assign(static_cast<std::size_t>(left), -1);
    most.weights.assign(static_cast<std::size_t>(left), 1.0f);
    for (const std::int64_t rows : state.sequences.tp_rows) {
        most.by_tp_rank.push_back(std::min(rows, left));
        left -= most.by_tp_rank.back();
    }
    const auto local = static_cast<std::size_t>(most.by_tp_rank[static_cast<std::size_t>(mesh_.tp_rank())]);
    most.local_rows.assign(local, 0);
    most.local_by_sample.assign(packed.lengths.size(), 0);
    if (!most.local_by_sample.empty()) most.local_by_sample[0] = static_cast<std::int64_t>(local);
    return most;
}

Language::Targets Language::targets_of(const PackedBatch& packed, const State& state) const {
    const parallel::Partition& partition = state.sequences.partition;
    std::vector<std::int32_t> row_in_slice(packed.ids.size(), -1);  // by packed row
    std::int32_t next = 0;
    for (const parallel::RowRange& range : partition.slice(mesh_.cp_rank()))
        for (std::int64_t row = range.first; row < range.first + range.count; ++row)
            row_in_slice[partition.offsets()[range.sequence] + row] = next++;
    const auto& tp_rows = state.sequences.tp_rows;
    Targets targets;
    targets.name_count = packed.names;
    targets.by_tp_rank.assign(tp_rows.size(), 0);
    targets.local_by_sample.assign(packed.lengths.size(), 0);
    std::size_t sample = 0, tp = 0;
    std::int64_t end = tp_rows[0];  // row of the slice at which those of rank tp end
    for (const PackedBatch::Target& target : packed.targets) {
        while (target.row >= partition.offsets()[sample + 1]) ++sample;
        const std::int32_t row = row_in_slice[target.row];
        if (row < 0) continue;
        while (row >= end) end += tp_rows[++tp];
        ++targets.by_tp_rank[tp];
        targets.tokens.push_back(target.token);
        targets.weights.push_back(target.weight);
        targets.names.push_back(target.name);
        if (static_cast<int>(tp) != mesh_.tp_rank()) continue;
        targets.local_rows.push_back(row - static_cast<std::int32_t>(state.first_local));
        ++targets.local_by_sample[sample];
    }
    return targets;
}

std::vector<std::vector<std::int64_t>> Language::input_rows(const Batch& batch) const {
    return partition(pack(batch)).input_rows;
}

std::unique_ptr<Saved> Language::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                         backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                         Result& result) {
    MAESTRO_CHECK(inputs.size() == role_.inputs.size(), "{} edges of {}", inputs.size(), role_.inputs.size());
    const PackedBatch packed = pack(batch);
    auto state = std::make_unique<State>(partition(packed));
    parallel::Sequences& sequences = state->sequences;
    const DType type = role_.compute, statistics = ops::accumulate_type(type);
    // Without a backward pass nothing is read again but the output.
    backend::Arena& kept = role_.needs_backward ? saved : scratch;
    sequences.cos = kept.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    sequences.sin = kept.allocate(statistics, {sequences.rows, spec_.head_dim / 2});
    state->device_ids = backend::to_device(backend_, state->ids, kept);
    for (const auto& places : state->places)
        state->device_places.push_back(backend::to_device(backend_, places, kept));
    sequences.copy_to_device(backend_, kept);
    {
        const backend::ArenaScope scope(scratch);
        ops::fill_rotary_1d(backend_, backend::to_device(backend_, state->positions, scratch),
                            spec_.rope_theta, sequences.cos, sequences.sin);
    }

    // Ids of -1 leave rows of zeros; the rows of edges take their places.
    const Tensor stream = kept.allocate(type, {state->local, spec_.width});
    {
        const backend::ArenaScope scope(scratch);
        const Tensor partial = sequence_parallel_.partial(stream, sequences.tp_rows, scratch);
        ops::embedding(backend_, state->device_ids, embedding_->weight, partial);
        sequence_parallel_.reduce_scatter(partial, stream, sequences.tp_rows, scratch);
    }
    for (std::size_t e = 0; e < inputs.size(); ++e) {
        MAESTRO_CHECK(inputs[e].size() == batch.samples.size(), "edge {} brings {} samples", e,
                      inputs[e].size());
        std::int64_t at = 0;
        for (std::size_t s = 0; s < inputs[e].size(); ++s) {
            const std::int64_t rows = inputs[e][s].dim(0);
            MAESTRO_CHECK(rows == state->input_rows[e][s],
                          "edge {} brings {} rows of sample {} for {} places", e, rows, batch.samples[s].id,
                          state->input_rows[e][s]);
            if (role_.inputs[e].tensor != EdgeTensor::embeddings) continue;
            ops::scatter_rows(backend_, inputs[e][s], state->device_places[e].slice(at, at + rows), stream);
            at += rows;
        }
    }
    state->stack = layers_.forward(stream, sequences, kept, scratch);

    const Tensor normed = (role_.emits ? saved : kept).allocate(type, {state->local, spec_.width});
    state->rstd = kept.allocate(statistics, {state->local});
    ops::rms_norm(backend_, state->stack.output, norm_->weight, normed, state->rstd, spec_.norm_eps);
    if (role_.emits) output = normed;
    if (role_.loss) {
        if (batch.train && role_.needs_backward) {
            state->d_normed = kept.allocate(type, {state->local, spec_.width});
            // Rows that predict nothing get no gradient from the loss.
            ops::zero(backend_, state->d_normed);
        }
        loss(batch, inputs, worst_case_ ? worst_case_targets(packed, *state) : targets_of(packed, *state),
             normed, state->d_normed, scratch, result);
        result.tokens += state->local;
    }
    return state;
}

Tensor Language::teacher_states(const std::vector<Tensor>& input, const Targets& targets, std::int64_t width,
                                std::int64_t room, backend::Arena& arena) const {
    const auto local = static_cast<std::int64_t>(targets.local_rows.size());
    const Tensor states = arena.allocate(role_.compute, {room, width}).slice(0, local);
    std::int64_t target = 0, first_row = 0;  // of the sample, among this rank's targets and rows
    for (std::size_t s = 0; s < input.size(); ++s) {
        const std::int64_t end = target + targets.local_by_sample[s];
        std::vector<std::int32_t> rows;  // of what the edge brings for the sample
        for (std::int64_t i = target; i < end; ++i)
            rows.push_back(targets.local_rows[i] - static_cast<std::int32_t>(first_row));
        const backend::ArenaScope scope(arena);
        if (!rows.empty())
            ops::gather_rows(backend_, input[s], backend::to_device(backend_, rows, arena),
                             states.slice(target, end));
        target = end;
        first_row += input[s].dim(0);
    }
    return sequence_parallel_.all_gather(states, targets.by_tp_rank, arena);
}

void Language::compare_names(const Tensor& logits, const Targets& targets, std::int64_t first_target,
                             std::vector<float>& wrong, backend::Arena& arena) const {
    const std::int64_t count = logits.dim(0);
    const int ranks = mesh_.degrees().tp;
    const backend::ArenaScope scope(arena);
    const Tensor ids = arena.allocate(DType::i32, {count, 1}),
                 values = arena.allocate(logits.dtype, {count, 1});
    ops::argmax_rows(backend_, logits, ids.reshape({count}), values.reshape({count}));
    // Each tp rank knows the best of its own part of the vocabulary.
    const std::vector<std::int64_t> each(static_cast<std::size_t>(ranks), count);
    const backend::HostCopy all_ids(backend_, sequence_parallel_.all_gather(ids, each, arena)),
        all_values(backend_, sequence_parallel_.all_gather(values, each, arena));
    if (!backend_.computes()) return;
    ops::by_logit_type(logits.dtype, [&]<class T>(T) {
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int32_t name = targets.names[first_target + i];
            if (name < 0) continue;
            int best = 0;  // the first of equal ones
            const auto value = [&](int rank) { return all_values.tensor().as<T>()[rank * count + i]; };
            for (int rank = 1; rank < ranks; ++rank)
                if (value(rank) > value(best)) best = rank;
            const std::int64_t token = all_ids.tensor().as<std::int32_t>()[best * count + i] +
                                       part_of(spec_.vocabulary, best, ranks).begin;
            if (token != targets.tokens[first_target + i]) wrong[name] = 1;
        }
    });
}

void Language::loss(const Batch& batch, std::span<const std::vector<Tensor>> inputs, const Targets& targets,
                    const Tensor& normed, const Tensor& d_normed, backend::Arena& arena, Result& result) {
    const auto total = static_cast<std::int64_t>(targets.tokens.size());
    const DType type = role_.compute, logit_type = ops::accumulate_type(type);
    const bool backward = d_normed.rank != 0;
    const auto teacher = std::find_if(teacher_heads_.begin(), teacher_heads_.end(),
                                      [](const auto* p) { return p != nullptr; });
    const bool distill = teacher != teacher_heads_.end() && role_.alpha > 0 && batch.train;
    ops::VocabularyShard vocabulary{vocabulary_, {}};
    if (!sequence_parallel_.single_rank())
        vocabulary.combine = [&](const Tensor& values, ops::Reduction how) {
            sequence_parallel_.group().all_reduce(backend_, values, how, arena);
        };
    const std::int64_t chunk = loss_rows(backend_);
    std::vector<float> wrong(static_cast<std::size_t>(targets.name_count), 0.0f);  // by name
    const backend::ArenaScope whole(arena);
    const Tensor tokens = backend::to_device(backend_, targets.tokens, arena),
                 weights = backend::to_device(backend_, targets.weights, arena),
                 local_rows = backend::to_device(backend_, targets.local_rows, arena);
    const auto local = static_cast<std::int64_t>(targets.local_rows.size());
    // Every tp rank needs the target rows of all of them, for its part of the vocabulary. All of them may be
    // this rank's: with room for that many, the scratch depends on the number of rows alone.
    const std::int64_t room = std::min(normed.dim(0), total);
    const Tensor local_hidden = arena.allocate(type, {room, spec_.width}).slice(0, local);
    ops::gather_rows(backend_, normed, local_rows, local_hidden);
    const Tensor all_hidden = sequence_parallel_.all_gather(local_hidden, targets.by_tp_rank, arena);
    Tensor all_states;
    if (distill)
        all_states = teacher_states(inputs[static_cast<std::size_t>(teacher - teacher_heads_.begin())],
                                    targets, (*teacher)->shape[1], room, arena);
    const Tensor sum(loss_.data(), DType::f64, {1});
    for (std::int64_t begin = 0; begin < total; begin += chunk) {
        const backend::ArenaScope scope(arena);
        const std::int64_t count = std::min(chunk, total - begin), end = begin + count;
        const Tensor hidden = all_hidden.slice(begin, end);
        const Tensor logits = arena.allocate(logit_type, {count, vocabulary_.size()});
        ops::linear(backend_, hidden, head_->weight, logits);
        if (!batch.train) compare_names(logits, targets, begin, wrong, arena);
        if (distill) {
            const Tensor teacher_logits = arena.allocate(logit_type, {count, vocabulary_.size()});
            ops::linear(backend_, all_states.slice(begin, end), (*teacher)->weight, teacher_logits);
            ops::distillation(backend_, logits, teacher_logits, tokens.slice(begin, end),
                              weights.slice(begin, end), role_.alpha, role_.temperature, batch.loss_scale,
                              vocabulary, sum, arena);
        } else {
            ops::cross_entropy(backend_, logits, tokens.slice(begin, end), weights.slice(begin, end),
                               batch.loss_scale, vocabulary, sum, arena);
        }
        if (!backward) continue;
        // The loss has turned the logits into their gradient. In bf16 it is rounded for the two products that
        // follow, as every other gradient of an activation is.
        Tensor d_logits = logits;
        if (type == DType::bf16) {
            d_logits = arena.allocate(type, {count, vocabulary_.size()});
            ops::convert(backend_, logits, d_logits);
        }
        if (role_.trained) ops::linear_backward_weight(backend_, d_logits, hidden, head_->gradient);
        // The hidden rows are not read again, so their gradient takes their place.
        ops::linear_backward_input(backend_, d_logits, head_->weight, hidden, false);
    }
    if (backward) {
        sequence_parallel_.reduce_scatter(all_hidden, local_hidden, targets.by_tp_rank, arena);
        ops::scatter_rows(backend_, local_hidden, local_rows, d_normed);
    }
    if (batch.train || targets.name_count == 0) return;
    if (mesh_.degrees().cp > 1) {  // the tokens of a name may lie in several slices
        const Tensor any = arena.allocate(DType::f32, {targets.name_count});
        backend_.upload(wrong.data(), any);
        mesh_.cp().all_reduce(backend_, any, ops::Reduction::max, arena);
        backend_.download(any, wrong.data());
    }
    if (mesh_.rank_in_replica() != 0) return;  // the other ranks find the same
    result.names += targets.name_count;
    result.exact += std::count(wrong.begin(), wrong.end(), 0.0f);
}

void Language::collect(Result& result) {
    if (!role_.loss) return;
    const Tensor sum(loss_.data(), DType::f64, {1});
    double found = 0;
    backend_.download(sum, &found);
    ops::zero(backend_, sum);
    if (mesh_.tp_rank() == 0) result.loss += found;  // the other tp ranks find the same
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
        ops::embedding_backward(backend_, state.device_ids,
                                sequence_parallel_.all_gather(d_stream, state.sequences.tp_rows, scratch),
                                embedding_->gradient, scratch);
    }
    for (std::size_t e = 0; e < d_inputs.size(); ++e)
        if (d_inputs[e].rank != 0 && role_.inputs[e].tensor == EdgeTensor::embeddings)
            ops::gather_rows(backend_, d_stream, state.device_places[e], d_inputs[e]);
}

}  // namespace maestro::model
