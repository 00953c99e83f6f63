// The second half of a transformer layer with experts (mixture of experts): norm, router, the experts that it
// chooses for each row, optionally an MLP for all rows with a separate gate, and the residual connection.
// The MLPs are gated by SwiGLU. The weight of an expert is applied between its two linear layers, where a row
// has I channels instead of C.
//
// Where the ranks of a group share the experts (Axis::ep), rows travel to them and their results back
// (parallel/expert_exchange.hpp). Nothing that arrives is kept: backward sends the rows again, with their
// gradients, and computes the first linear layer again. The memory that a rank needs for tensors thus does
// not depend on what the router chooses.
//
// Shape letters as in transformer.hpp; R = `local` rows, E experts, k choices of a row, M rows of which the
// experts of this rank get at least one choice, N such choices, I hidden channels of an expert on this rank,
// S those of the shared MLP. Where one rank has all experts, M = R and N = R k. A is the accumulation type
// (ops/dispatch.hpp).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/norm.hpp"
#include "ops/router.hpp"
#include "parallel/expert_exchange.hpp"
#include "parallel/sequences.hpp"

namespace maestro::model {

/// What the backward pass reads. With Recompute::cheap, those marked (r) are absent and are computed again.
struct ExpertBlockActivations {
    Tensor input;           ///< [R, C]: the residual stream
    Tensor normed;          ///< [R, C] (r)
    Norm::Statistics norm;  ///< [R]
    Tensor scores;          ///< [R, E], A: of the router
    Tensor choice;          ///< [R, k], i32: its choices
    Tensor weight;          ///< [R, k], A: their weights
    // One rank has all experts:
    Tensor row, slot, position;  ///< [N], [N], [R, k], i32: see parallel::ExpertOrder
    Tensor hidden, activated;    ///< [N, 2 I], [N, I] (r)
    // The shared MLP:
    Tensor shared_hidden, shared_activated;  ///< [R, 2 S], [R, S] (r)
    Tensor shared_gate;                      ///< [R, 1], A
    /// What forward() leaves on the host for backward().
    struct Host {
        std::vector<std::int32_t> choices;          ///< [R, k]
        std::vector<std::int64_t> begin;            ///< of one rank: see parallel::ExpertOrder
        std::vector<parallel::ExpertRound> rounds;  ///< of several ranks
    };
    std::shared_ptr<Host> host;
};

class ExpertBlock {
public:
    /// Declares "PREFIXmlp.*" in `store`. Ranks along Axis::ep hold different experts, or parts of their
    /// channels; norm, router and shared MLP are copies. Backend, mesh and store outlive the block.
    ExpertBlock(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                const parallel::Mesh& mesh, parallel::ParameterStore& store, const std::string& prefix);

    /// As those of MlpBlock. forward() and backward() are collective over Axis::ep.
    ExpertBlockActivations allocate(const Tensor& input, const parallel::Sequences& sequences,
                                    backend::Arena& saved, backend::Arena& passing) const;
    void forward(const ExpertBlockActivations& a, const Tensor& output, const parallel::Sequences& sequences,
                 backend::Arena& scratch) const;
    void discard_cheap(ExpertBlockActivations& a) const { a.normed = a.activated = a.shared_activated = {}; }
    void backward(const ExpertBlockActivations& a, const Tensor& d_stream,
                  const parallel::Sequences& sequences, backend::Arena& scratch) const;

    /// How often each expert was chosen since the last call, counted by backward().
    ExpertLoad take_load(int layer) const {
        return {.layer = layer,
                .choices = std::exchange(*load_, std::vector<std::int64_t>(load_->size(), 0)),
                .bias = weights_.bias && weights_.bias->trainable ? weights_.bias : nullptr};
    }

    /// Host memory for the exchange of rows, see HostBytes: of one layer.
    HostBytes host_bytes(const parallel::Sequences& sequences) const;

private:
    struct Weights {
        const parallel::Parameter *router, *gate_up, *down;
        const parallel::Parameter* bias = nullptr;  ///< of the router's choices; null: none
        const parallel::Parameter *shared_gate = nullptr, *shared_gate_up = nullptr,
                                  *shared_down = nullptr;  ///< null: none
    };
    /// The order of choices by expert, see parallel::ExpertOrder.
    struct Sorted {
        std::vector<std::int64_t> begin;
        Tensor row, slot, position;
    };
    /// A round of the exchange, after which this rank has the rows of its experts.
    struct Dispatched;
    Weights declare(parallel::ParameterStore& store, const Role& role, const std::string& prefix) const;
    bool shares_experts() const { return group_.degrees.ranks() > 1; }
    /// Returns the rows of each rank of the group.
    std::vector<std::int64_t> rows_by_rank(const parallel::Sequences& sequences) const;

    void route(const ExpertBlockActivations& a, backend::Arena& scratch) const;
    /// Runs the experts of this rank on x[M, C] with weights[M, k]. Writes hidden[N, 2 I] and
    /// activated[N, I], and sum[M, C] (+)= the sum of each row's results.
    void run(const Tensor& x, const Tensor& weights, const Sorted& order, const Tensor& hidden,
             const Tensor& activated, const Tensor& sum, bool accumulate, backend::Arena& scratch) const;
    /// dx[M, C] = the gradient of x from d_sum[M, C], and d_weights[M, k] that of the weights of this rank's
    /// experts; adds those of the parameters. An empty `hidden` or `activated` is computed again.
    void run_backward(const Tensor& x, const Tensor& weights, const Sorted& order, Tensor hidden,
                      Tensor activated, const Tensor& d_sum, const Tensor& dx, const Tensor& d_weights,
                      backend::Arena& scratch) const;
    void forward_here(const ExpertBlockActivations& a, const Tensor& output, backend::Arena& scratch) const;
    void forward_in_rounds(const ExpertBlockActivations& a, const Tensor& output,
                           std::span<const std::int64_t> rows, backend::Arena& scratch) const;
    /// d_normed[R, C] += the gradient of the rows, and d_weight[R, k] += that of their weights.
    void backward_in_rounds(const ExpertBlockActivations& a, const Tensor& normed, const Tensor& d_stream,
                            std::span<const std::int64_t> rows, const Tensor& d_normed,
                            const Tensor& d_weight, backend::Arena& scratch) const;
    /// Describes round `round`, with the weights of the rows that it brings. Its memory remains in `scratch`.
    /// `rows`: of the ranks that share the experts.
    Dispatched dispatch_round(const ExpertBlockActivations& a, std::size_t round,
                              std::span<const std::int64_t> rows, backend::Arena& scratch) const;
    void forward_shared(const ExpertBlockActivations& a, const Tensor& output, backend::Arena& scratch) const;
    /// d_normed[R, C] += the gradient of its input.
    void backward_shared(const ExpertBlockActivations& a, const Tensor& normed, const Tensor& d_stream,
                         const Tensor& d_normed, backend::Arena& scratch) const;
    /// d_logits[R, E] += the gradient of the loss that balances experts, which is added to
    /// Sequences::balance_loss.
    void backward_balance(const ExpertBlockActivations& a, const parallel::Sequences& sequences,
                          const Tensor& d_logits, backend::Arena& scratch) const;
    /// d_normed[R, C] += the gradient of the rows that a linear layer without bias turned into the logits of
    /// d_logits[R, n], and adds that of its weight.
    void backward_logits(const parallel::Parameter& weight, const Tensor& normed, const Tensor& d_logits,
                         const Tensor& d_normed, backend::Arena& scratch) const;
    /// The meta backend assumes that all choices are equally likely. Takes the memory by which a round of
    /// real choices may exceed that. `rows`: of the ranks that share the experts.
    void reserve_margin(const Dispatched& dispatched, std::span<const std::int64_t> rows, bool backward,
                        backend::Arena& scratch) const;

    backend::Backend& backend_;
    const parallel::Mesh* mesh_;
    ModelSpec spec_;
    DType type_, accumulate_;
    ops::RouterForm form_;
    parallel::ExpertGroup group_;
    parallel::ExpertExchange exchange_;
    std::int64_t mlp_;  ///< hidden channels of an expert on this rank
    Norm norm_;
    Weights weights_;
    std::shared_ptr<std::vector<std::int64_t>> load_;  ///< [E]: choices since take_load()
};

}  // namespace maestro::model
