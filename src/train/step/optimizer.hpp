// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019) over the ranks that hold
// the same weights: each keeps the moments of one share of the flat array of parameters (as ZeRO stage 1:
// Rajbhandari et al., SC 2020), updates it, and all gather the new weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "collective/process_group.hpp"
#include "parallel/parameters.hpp"
#include "parallel/peers.hpp"

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

/// Of `step`, counted from 1: linear warm-up, then a half cosine down to the final rate.
double learning_rate(const AdamSettings& settings, std::int64_t step);

class Optimizer {
public:
    /// `data`: the ranks of all replicas that hold these very shards, over dp and cp. `store` and `peers`,
    /// the lane's, must outlive it.
    Optimizer(backend::Backend& backend, parallel::ParameterStore& store,
              std::unique_ptr<collective::ProcessGroup> data, const parallel::Peers& peers);

    /// Collective over the section's ranks. Sums what ranks of the lane have each worked out a part of, then
    /// the gradients over `data`; this rank keeps the sum of its share, in place. Returns the sum of squares
    /// of the share, of which elements that several ranks of a lane hold count on the first of them. Scratch:
    /// see workload::memory_of.
    double reduce(backend::Arena& scratch);
    /// Collective over `data`, after reduce(): one AdamW update of the share with the gradient times
    /// `gradient_scale`, then the new weights everywhere.
    void update(const AdamSettings& settings, std::int64_t step, double gradient_scale);

    /// Are all weights of the share numbers? By the device, where the host would have to fetch them first.
    bool weights_are_numbers(backend::Arena& scratch);
    /// The ranks that hold the same shards.
    const collective::ProcessGroup& data() const { return *data_; }
    /// Of the elements that this rank holds of a parameter, those whose moments are kept here; none where the
    /// size is not positive.
    Range share_of(const parallel::Parameter& parameter) const;
    /// The moments of that share, [n], in the memory of the optimizer.
    Tensor first_moments(const parallel::Parameter& parameter) const { return part(first_, parameter); }
    Tensor second_moments(const parallel::Parameter& parameter) const { return part(second_, parameter); }
    void set_moments(const parallel::Parameter& parameter, std::span<const float> first,
                     std::span<const float> second);
    std::size_t bytes() const { return first_.bytes() + second_.bytes(); }

private:
    void make_chunks();
    void sum_shared(parallel::Sharing sharing, backend::Arena& scratch);
    /// Of those elements, in double. Waits for the device.
    double sum_squares(const Tensor& values, std::span<const Range> ranges, backend::Arena& scratch);
    Tensor gradient() const;  ///< of the share
    Tensor part(const backend::Buffer& moments, const parallel::Parameter& parameter) const;

    backend::Backend& backend_;
    parallel::ParameterStore& store_;
    std::unique_ptr<collective::ProcessGroup> data_;
    const parallel::Peers& peers_;
    std::vector<std::int64_t> blocks_;  ///< of kBlock elements, of every rank's share
    Range share_;                       ///< of the flat array
    std::vector<Range> counted_;        ///< of it, in the norm
    backend::Buffer squares_;           ///< f64[1], a sum on its way to the host
    backend::Buffer chunks_;            ///< of the share, as adamw() takes them
    backend::Buffer first_;
    backend::Buffer second_;
};

}  // namespace maestro::train
