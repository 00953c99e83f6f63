// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019) over the replicas of a
// section: each replica keeps the moments of one shard of the flat parameter array (as ZeRO stage 1:
// Rajbhandari et al., SC 2020), updates it, and all gather the new weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "comm/communicator.hpp"
#include "model/parameters.hpp"

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
    /// `store` and `section` (the replicas) must outlive it. The store must be padded to section.size()
    /// shards.
    Optimizer(backend::Backend& backend, model::ParameterStore& store, const comm::Communicator& section);

    /// Collective over the section: sums the gradients over the replicas; this one keeps its shard. Returns
    /// the sum of squares of the shard.
    double reduce();
    /// Collective over the section, after reduce(): one AdamW update of the shard with the gradient times
    /// `gradient_scale`, then the new weights everywhere.
    void update(const AdamSettings& settings, std::int64_t step, double gradient_scale);

    /// Whole moments, gathered (collective); as many floats as the store's trainable array.
    void gather(std::vector<float>& first, std::vector<float>& second) const;
    /// Of the elements that this rank holds of a parameter, those whose moments are kept here; none where the
    /// size is not positive.
    Range share_of(const model::Parameter& parameter) const;
    /// The moments of that share.
    void set_moments(const model::Parameter& parameter, std::span<const float> first,
                     std::span<const float> second);
    std::size_t bytes() const { return gradient_.bytes() + first_.bytes() + second_.bytes(); }

private:
    /// The summed gradient of the shard: one replica's is the sum itself.
    Tensor gradient() const;

    backend::Backend& backend_;
    model::ParameterStore& store_;
    const comm::Communicator& section_;
    std::int64_t shard_ = 0;    ///< elements of a shard
    std::int64_t begin_ = 0;    ///< first element of this replica's shard
    backend::Buffer gradient_;  ///< empty for one replica
    backend::Buffer first_;
    backend::Buffer second_;
};

}  // namespace maestro::train
