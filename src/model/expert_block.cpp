#include "model/expert_block.hpp"

#include <numeric>

#include "backend/host_access.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/expert_rows.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/linear.hpp"
#include "ops/rows.hpp"

namespace maestro::model {

namespace {

parallel::ExpertGroup group_of(const ExpertsSpec& spec, const parallel::Mesh& mesh) {
    return {mesh.shape().experts, mesh.ep().rank(), spec.count, spec.per_token, mesh.ep().nodes()};
}

/// The gate of the shared MLP: a router of one expert.
constexpr ops::RouterForm kSharedGate{ops::RouterScore::sigmoid, false};

/// One element for each of the choices of a table [R, k].
Tensor by_choice(const Tensor& table) {
    return table.reshape({table.size(), 1});
}

}  // namespace

ExpertBlock::ExpertBlock(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                         const parallel::Mesh& mesh, parallel::ParameterStore& store,
                         const std::string& prefix)
    : backend_(backend),
      mesh_(&mesh),
      spec_(spec),
      type_(role.compute),
      accumulate_(ops::accumulate_type(role.compute)),
      form_{spec.experts.router == ExpertsSpec::Router::softmax ? ops::RouterScore::softmax
                                                                : ops::RouterScore::sigmoid,
            spec.experts.normalize},
      group_(group_of(spec.experts, mesh)),
      exchange_(backend, mesh, group_, type_, spec.width),
      mlp_(spec.experts.mlp / group_.degrees.etp),
      norm_(backend, spec.form.norm, spec.norm_eps, store, prefix + "mlp.norm", spec.width, role.trained),
      weights_(declare(store, role, prefix)),
      load_(std::make_shared<std::vector<std::int64_t>>(static_cast<std::size_t>(spec.experts.count), 0)) {}

/// In the order in which forward uses them.
ExpertBlock::Weights ExpertBlock::declare(parallel::ParameterStore& store, const Role& role,
                                          const std::string& prefix) const {
    using parallel::Init;
    const std::int64_t width = spec_.width, mlp = spec_.experts.mlp, count = spec_.experts.count,
                       shared = spec_.experts.shared_mlp;
    const std::string mlp_prefix = prefix + "mlp.";
    Weights weights{};
    weights.router = &store.declare(mlp_prefix + "router.weight", {count, width}, Init::normal, role.trained);
    if (spec_.experts.balance == ExpertsSpec::Balance::bias) {
        parallel::Parameter& bias =
            store.declare(mlp_prefix + "router.bias", {count}, Init::zeros, role.trained);
        bias.balance_step = spec_.experts.balance_strength;
        weights.bias = &bias;
    }
    const Range experts = group_.experts_of(group_.rank);
    const std::int64_t part = group_.rank % group_.degrees.etp;
    const Range channels{part * mlp_, (part + 1) * mlp_};
    std::vector<parallel::ParameterRows> rows;
    if (group_.degrees.etp == 1)
        rows = {{{experts.begin * 2 * mlp, experts.end * 2 * mlp}}};
    else
        for (std::int64_t half = 2 * experts.begin; half < 2 * experts.end; ++half)  // gate or up
            rows.push_back({{half * mlp + channels.begin, half * mlp + channels.end}});
    weights.gate_up = &store.declare(mlp_prefix + "experts.gate_up.weight", {count * 2 * mlp, width},
                                     Init::normal, role.trained, rows, {0, width}, parallel::kExpertDataAxes);
    weights.down =
        &store.declare(mlp_prefix + "experts.down.weight", {count * width, mlp}, Init::residual, role.trained,
                       {{{experts.begin * width, experts.end * width}}}, channels, parallel::kExpertDataAxes);
    if (shared == 0) return weights;
    weights.shared_gate =
        &store.declare(mlp_prefix + "shared.gate.weight", {1, width}, Init::normal, role.trained);
    weights.shared_gate_up =
        &store.declare(mlp_prefix + "shared.gate_up.weight", {2 * shared, width}, Init::normal, role.trained);
    weights.shared_down =
        &store.declare(mlp_prefix + "shared.down.weight", {width, shared}, Init::residual, role.trained);
    return weights;
}

std::vector<std::int64_t> ExpertBlock::rows_by_rank(const parallel::Sequences& sequences) const {
    const int tp = mesh_->degrees().tp, replica = mesh_->degrees().ranks(), ranks = group_.degrees.ranks();
    const auto lane = static_cast<int>(sequences.lane_rows.size());
    // The group's first rank in the lane, or, if the rows of other replicas are not known, in the replica.
    const int self = mesh_->rank_in_stage(), first = self / ranks * ranks;
    std::vector<std::int64_t> rows;
    for (int rank = first; rank < first + ranks; ++rank) {
        const int here = rank % replica;
        rows.push_back(lane > 0
                           ? sequences.lane_rows[static_cast<std::size_t>(rank % lane)]
                           : sequences.partition.tp_rows(here / tp)[static_cast<std::size_t>(here % tp)]);
    }
    return rows;
}

HostBytes ExpertBlock::host_bytes(const parallel::Sequences& sequences) const {
    const std::vector<std::int64_t> rows = rows_by_rank(sequences);
    const std::int64_t mine =
        shares_experts()
            ? rows[static_cast<std::size_t>(group_.rank)]
            : sequences.partition.tp_rows(mesh_->cp_rank())[static_cast<std::size_t>(mesh_->tp_rank())];
    const std::int64_t choices = mine * group_.choices * std::int64_t{sizeof(std::int32_t)};
    if (!shares_experts())  // row, slot and position of each choice, which are uploaded
        return {.saved = static_cast<std::size_t>(choices), .scratch = static_cast<std::size_t>(3 * choices)};
    const parallel::ExpertHostBytes rounds = parallel::expert_host_bytes(group_, rows);
    return {.saved = static_cast<std::size_t>(choices + rounds.round),
            .scratch = static_cast<std::size_t>(choices + rounds.round + rounds.planning)};
}

ExpertBlockActivations ExpertBlock::allocate(const Tensor& input, const parallel::Sequences& /*sequences*/,
                                             backend::Arena& saved, backend::Arena& passing) const {
    const std::int64_t rows = input.dim(0), k = group_.choices, shared = spec_.experts.shared_mlp;
    ExpertBlockActivations a;
    a.input = input;
    a.normed = passing.allocate(type_, {rows, spec_.width});
    a.norm = norm_.allocate(rows, type_, saved);
    a.scores = saved.allocate(accumulate_, {rows, group_.experts});
    a.choice = saved.allocate(DType::i32, {rows, k});
    a.weight = saved.allocate(accumulate_, {rows, k});
    a.host = std::make_shared<ExpertBlockActivations::Host>();
    if (!shares_experts()) {
        a.row = saved.allocate(DType::i32, {rows * k});
        a.slot = saved.allocate(DType::i32, {rows * k});
        a.position = saved.allocate(DType::i32, {rows, k});
        a.hidden = saved.allocate(type_, {rows * k, 2 * mlp_});
        a.activated = passing.allocate(type_, {rows * k, mlp_});
    }
    if (shared > 0) {
        a.shared_gate = saved.allocate(accumulate_, {rows, 1});
        a.shared_hidden = saved.allocate(type_, {rows, 2 * shared});
        a.shared_activated = passing.allocate(type_, {rows, shared});
    }
    return a;
}

void ExpertBlock::route(const ExpertBlockActivations& a, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const Tensor logits = scratch.allocate(accumulate_, {a.input.dim(0), group_.experts});
    ops::linear(backend_, a.normed, weights_.router->weight, logits);
    Tensor bias;
    if (weights_.bias) {
        bias = scratch.allocate(accumulate_, {group_.experts});
        ops::convert(backend_, weights_.bias->weight, bias);
    }
    ops::route(backend_, logits, bias, form_, a.scores, a.choice, a.weight);
    if (!backend_.computes()) return;
    a.host->choices.resize(static_cast<std::size_t>(a.choice.size()));
    backend_.download(a.choice, a.host->choices.data());
}

void ExpertBlock::run(const Tensor& x, const Tensor& weights, const Sorted& order, const Tensor& hidden,
                      const Tensor& activated, const Tensor& sum, bool accumulate,
                      backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t n = order.row.size();
    const Tensor by_expert = scratch.allocate(type_, {n, spec_.width}),
                 weight = scratch.allocate(accumulate_, {n, 1});
    ops::gather_rows(backend_, x, order.row, by_expert);
    ops::gather_rows(backend_, by_choice(weights), order.slot, weight);
    ops::grouped_linear(backend_, by_expert, weights_.gate_up->weight, order.begin, hidden);
    ops::weighted_swiglu(backend_, hidden, weight.reshape({n}), activated);
    ops::grouped_linear(backend_, activated, weights_.down->weight, order.begin, by_expert);
    ops::sum_rows(backend_, by_expert, order.position, sum, accumulate);
}

void ExpertBlock::run_backward(const Tensor& x, const Tensor& weights, const Sorted& order, Tensor hidden,
                               Tensor activated, const Tensor& d_sum, const Tensor& dx,
                               const Tensor& d_weights, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t n = order.row.size();
    const auto rows_of = [&](std::int64_t columns) { return scratch.allocate(type_, {n, columns}); };
    const Tensor weight = scratch.allocate(accumulate_, {n, 1}),
                 d_weight = scratch.allocate(accumulate_, {n, 1});
    ops::gather_rows(backend_, by_choice(weights), order.slot, weight);
    Tensor x_by_expert;
    if (hidden.rank == 0 || weights_.gate_up->trainable) {
        x_by_expert = rows_of(spec_.width);
        ops::gather_rows(backend_, x, order.row, x_by_expert);
    }
    if (hidden.rank == 0) {
        hidden = rows_of(2 * mlp_);
        ops::grouped_linear(backend_, x_by_expert, weights_.gate_up->weight, order.begin, hidden);
    }
    const Tensor d_by_expert = rows_of(spec_.width), d_activated = rows_of(mlp_),
                 d_hidden = rows_of(2 * mlp_);
    ops::gather_rows(backend_, d_sum, order.row, d_by_expert);
    ops::grouped_linear_backward_input(backend_, d_by_expert, weights_.down->weight, order.begin,
                                       d_activated);
    if (weights_.down->trainable) {
        if (activated.rank == 0) {
            activated = rows_of(mlp_);
            ops::weighted_swiglu(backend_, hidden, weight.reshape({n}), activated);
        }
        ops::grouped_linear_backward_weight(backend_, d_by_expert, activated, order.begin,
                                            weights_.down->gradient);
    }
    ops::weighted_swiglu_backward(backend_, d_activated, hidden, weight.reshape({n}), d_hidden,
                                  d_weight.reshape({n}));
    ops::scatter_rows(backend_, d_weight, order.slot, by_choice(d_weights));
    if (weights_.gate_up->trainable)
        ops::grouped_linear_backward_weight(backend_, d_hidden, x_by_expert, order.begin,
                                            weights_.gate_up->gradient);
    // The gradients of the results have been read, and those of the rows take their place.
    ops::grouped_linear_backward_input(backend_, d_hidden, weights_.gate_up->weight, order.begin,
                                       d_by_expert);
    ops::sum_rows(backend_, d_by_expert, order.position, dx, false);
}

void ExpertBlock::forward(const ExpertBlockActivations& a, const Tensor& output,
                          const parallel::Sequences& sequences, backend::Arena& scratch) const {
    norm_.forward(a.input, a.normed, a.norm);
    route(a, scratch);
    ops::convert(backend_, a.input, output);
    if (weights_.shared_down) forward_shared(a, output, scratch);
    if (shares_experts())
        forward_in_rounds(a, output, rows_by_rank(sequences), scratch);
    else
        forward_here(a, output, scratch);
}

void ExpertBlock::forward_here(const ExpertBlockActivations& a, const Tensor& output,
                               backend::Arena& scratch) const {
    backend_.count(backend::HostWork{.choices = static_cast<double>(a.choice.size())});
    Sorted order{{}, a.row, a.slot, a.position};
    if (backend_.computes()) {
        parallel::ExpertOrder found =
            parallel::order_by_expert(a.host->choices, group_.choices, {0, group_.experts});
        backend_.upload(found.row.data(), a.row);
        backend_.upload(found.slot.data(), a.slot);
        backend_.upload(found.position.data(), a.position);
        order.begin = std::move(found.begin);
    } else {
        for (std::int64_t e = 0; e <= group_.experts; ++e)
            order.begin.push_back(a.row.size() * e / group_.experts);
    }
    a.host->begin = order.begin;
    run(a.normed, a.weight, order, a.hidden, a.activated, output, true, scratch);
}

void ExpertBlock::forward_shared(const ExpertBlockActivations& a, const Tensor& output,
                                 backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t rows = a.input.dim(0);
    const Tensor logits = scratch.allocate(accumulate_, {rows, 1}),
                 choice = scratch.allocate(DType::i32, {rows, 1}),
                 scores = scratch.allocate(accumulate_, {rows, 1});
    ops::linear(backend_, a.normed, weights_.shared_gate->weight, logits);
    ops::route(backend_, logits, {}, kSharedGate, scores, choice, a.shared_gate);
    ops::linear(backend_, a.normed, weights_.shared_gate_up->weight, a.shared_hidden);
    ops::weighted_swiglu(backend_, a.shared_hidden, a.shared_gate.reshape({rows}), a.shared_activated);
    ops::linear_accumulate(backend_, a.shared_activated, weights_.shared_down->weight, output);
}

void ExpertBlock::backward_logits(const parallel::Parameter& weight, const Tensor& normed,
                                  const Tensor& d_logits, const Tensor& d_normed,
                                  backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    Tensor rounded = d_logits;
    if (d_logits.dtype != type_) {
        rounded = scratch.allocate(type_, {d_logits.dim(0), d_logits.columns()});
        ops::convert(backend_, d_logits, rounded);
    }
    ops::linear_backward_input(backend_, rounded, weight.weight, d_normed, true);
    if (weight.trainable) ops::linear_backward_weight(backend_, rounded, normed, weight.gradient);
}

void ExpertBlock::backward_shared(const ExpertBlockActivations& a, const Tensor& normed,
                                  const Tensor& d_stream, const Tensor& d_normed,
                                  backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t rows = a.input.dim(0), shared = spec_.experts.shared_mlp;
    const Tensor gate = a.shared_gate.reshape({rows});
    const Tensor d_activated = scratch.allocate(type_, {rows, shared}),
                 d_hidden = scratch.allocate(type_, {rows, 2 * shared}),
                 d_gate = scratch.allocate(accumulate_, {rows, 1}),
                 d_logits = scratch.allocate(accumulate_, {rows, 1}),
                 choice = scratch.allocate(DType::i32, {rows, 1});
    ops::linear_backward_input(backend_, d_stream, weights_.shared_down->weight, d_activated, false);
    if (weights_.shared_down->trainable) {
        Tensor activated = a.shared_activated;
        if (activated.rank == 0) {
            activated = scratch.allocate(type_, {rows, shared});
            ops::weighted_swiglu(backend_, a.shared_hidden, gate, activated);
        }
        ops::linear_backward_weight(backend_, d_stream, activated, weights_.shared_down->gradient);
    }
    ops::weighted_swiglu_backward(backend_, d_activated, a.shared_hidden, gate, d_hidden,
                                  d_gate.reshape({rows}));
    ops::linear_backward_input(backend_, d_hidden, weights_.shared_gate_up->weight, d_normed, true);
    if (weights_.shared_gate_up->trainable)
        ops::linear_backward_weight(backend_, d_hidden, normed, weights_.shared_gate_up->gradient);
    ops::zero(backend_, choice);
    ops::route_backward(backend_, d_gate, a.shared_gate, choice, kSharedGate, d_logits);
    backward_logits(*weights_.shared_gate, normed, d_logits, d_normed, scratch);
}

void ExpertBlock::backward(const ExpertBlockActivations& a, const Tensor& d_stream,
                           const parallel::Sequences& sequences, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const std::int64_t rows = a.input.dim(0);
    Tensor normed = a.normed;
    if (normed.rank == 0) {
        normed = scratch.allocate(type_, {rows, spec_.width});
        norm_.forward(a.input, normed, a.norm);
    }
    const Tensor d_normed = scratch.allocate(type_, {rows, spec_.width}),
                 d_weight = scratch.allocate(accumulate_, {rows, group_.choices});
    if (shares_experts()) {
        ops::zero(backend_, d_normed);
        ops::zero(backend_, d_weight);
        backward_in_rounds(a, normed, d_stream, rows_by_rank(sequences), d_normed, d_weight, scratch);
    } else {
        run_backward(normed, a.weight, {a.host->begin, a.row, a.slot, a.position}, a.hidden, a.activated,
                     d_stream, d_normed, d_weight, scratch);
    }
    if (weights_.shared_down) backward_shared(a, normed, d_stream, d_normed, scratch);
    {
        const backend::ArenaScope restored(scratch);
        const Tensor d_logits = scratch.allocate(accumulate_, {rows, group_.experts});
        ops::route_backward(backend_, d_weight, a.scores, a.choice, form_, d_logits);
        if (spec_.experts.balance == ExpertsSpec::Balance::loss)
            backward_balance(a, sequences, d_logits, scratch);
        backward_logits(*weights_.router, normed, d_logits, d_normed, scratch);
    }
    for (const std::int32_t expert : a.host->choices) ++(*load_)[static_cast<std::size_t>(expert)];
    norm_.backward(d_normed, a.input, a.norm, d_stream, true, scratch);
}

void ExpertBlock::backward_balance(const ExpertBlockActivations& a, const parallel::Sequences& sequences,
                                   const Tensor& d_logits, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const parallel::Partition& partition = sequences.partition;
    const std::int64_t count = partition.sequences(), experts = group_.experts;
    // Which choices the rows of a sequence have made on this rank, and on all that have rows of it.
    std::vector<std::int32_t> sequence_of_row;
    for (const parallel::RowRange& range : partition.rows_of(mesh_->cp_rank(), mesh_->tp_rank()))
        sequence_of_row.insert(sequence_of_row.end(), static_cast<std::size_t>(range.count), range.sequence);
    const Tensor chosen = scratch.allocate(accumulate_, {count, experts});
    if (backend_.computes())
        ops::by_type(accumulate_, [&]<class T>(T) {
            using A = Accumulate<T>;
            std::vector<A> counts(static_cast<std::size_t>(count * experts));
            const auto k = static_cast<std::size_t>(group_.choices);
            for (std::size_t i = 0; i < a.host->choices.size(); ++i)
                counts[static_cast<std::size_t>(sequence_of_row[i / k] * experts + a.host->choices[i])] +=
                    A(1);
            backend_.upload(counts.data(), chosen);
        });
    mesh_->tp().all_reduce(backend_, chosen, ops::Reduction::sum, scratch);
    mesh_->cp().all_reduce(backend_, chosen, ops::Reduction::sum, scratch);
    // With n rows of a sequence, f = E counts / (k n) and P = sum of scores / n, its loss is strength * share
    // * sum of f P over the experts.
    const Tensor factor = scratch.allocate(accumulate_, {count});
    ops::by_type(accumulate_, [&]<class T>(T) {
        using A = Accumulate<T>;
        std::vector<A> factors(static_cast<std::size_t>(count), A(0));
        for (std::size_t i = 0; i < factors.size() && i < sequences.loss_shares.size(); ++i) {
            const double rows = partition.offsets()[i + 1] - partition.offsets()[i];
            factors[i] = static_cast<A>(spec_.experts.balance_strength * sequences.loss_shares[i] *
                                        static_cast<double>(experts) / (group_.choices * rows * rows));
        }
        backend_.upload(factors.data(), factor);
    });
    ops::balance_backward(backend_, a.scores, backend::to_device(backend_, sequence_of_row, scratch), chosen,
                          factor, form_, d_logits, sequences.balance_loss, scratch);
}

}  // namespace maestro::model
