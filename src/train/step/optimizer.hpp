// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019). Each rank keeps the
// moments of its shards and updates these; see parallel/parameter_group.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "parallel/parameter_store.hpp"

namespace maestro::model {
struct ExpertLoad;
}

namespace maestro::train {

struct AdamSettings {
    double learning_rate = 1e-3;
    double final_learning_rate = 0;
    std::int64_t warmup_steps = 0;
    std::int64_t decay_steps = 0;  ///< absolute; after them the final rate stays
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;
    double clip = 0;  ///< of the global gradient norm; 0: none
};

/// Returns the learning rate of `step`, counted from 1: linear warm-up, then a half cosine down to the final
/// rate.
double learning_rate(const AdamSettings& settings, std::int64_t step);
/// `settings` with another largest learning rate or weight decay, where given. The final rate keeps its ratio
/// to the largest, so that all rates differ by one factor.
AdamSettings with_rates(AdamSettings settings, std::optional<double> learning_rate,
                        std::optional<double> weight_decay);

class Optimizer {
public:
    /// Keeps the moments of the trainable groups of `store`, which must outlive it. They start at zero.
    Optimizer(backend::Backend& backend, parallel::ParameterStore& store);

    /// The groups that it updates, in the order of the store. The functions below take their index.
    std::size_t size() const { return states_.size(); }
    parallel::ParameterGroup& group(std::size_t index) { return *states_[index].group; }

    /// Adds the squares of the group's summed gradients that count on this rank to squares().
    void add_squares(std::size_t index, backend::Arena& scratch);
    /// Returns the sum of squares since the last call. Waits for the device.
    double take_squares();
    /// One AdamW update of the master weights of this rank's shard, with its gradients times
    /// `gradient_scale`.
    void update(std::size_t index, const AdamSettings& settings, std::int64_t step, double gradient_scale);
    /// Moves the biases of these layers' routers in this rank's shards, see Parameter::balance_step. `loads`:
    /// the choices of a step, over all ranks. Sends the device one array for all layers, and waits for
    /// nothing.
    void balance(std::span<const model::ExpertLoad> loads);

    /// Whether all weights of the shards are finite. Computed on the device: the host would have to copy
    /// them.
    bool all_finite(backend::Arena& scratch);
    /// The moments of the elements of a parameter in this rank's shard, [n], in the memory of the optimizer.
    Tensor first_moments(const parallel::Parameter& parameter) const;
    Tensor second_moments(const parallel::Parameter& parameter) const;
    /// Sets those of `elements`, which are in this rank's shard and counted as ParameterGroup::shard_of()
    /// does.
    void set_moments(const parallel::Parameter& parameter, Range elements, std::span<const float> first,
                     std::span<const float> second);
    std::size_t bytes() const;

private:
    /// The optimizer states of a parameter group.
    struct State {
        parallel::ParameterGroup* group;
        std::vector<Range> counted;     ///< ranges of the flat arrays that this rank counts in the norm
        backend::Buffer chunks;         ///< the elements to update in the shard, see ops::update_chunks()
        backend::Buffer first, second;  ///< moments of the shard
    };
    void add_group(parallel::ParameterGroup& group);
    const State& state_of(const parallel::Parameter& parameter) const;
    Tensor squares() const { return Tensor(squares_.data(), DType::f64, {1}); }

    backend::Backend& backend_;
    const parallel::ParameterStore& store_;
    backend::Buffer squares_;  ///< f64[1], a sum that stays on the device until it is complete
    std::deque<State> states_;
    std::int64_t balanced_ = 0;  ///< elements of biases that balance experts in this rank's shards
    backend::Buffer moves_;      ///< [balanced_], of the type of the masters: what balance() adds to them
};

}  // namespace maestro::train
