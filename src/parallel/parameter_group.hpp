// Weights that the same ranks hold and that are summed, updated and gathered together, in flat arrays. Here
// is said, once, who sums what:
//   1. Ranks of a replica that hold copies of the same weights (norms along tp, key heads along kv) each
//   compute a
//      part of their gradient. An all-reduce along that axis sums the parts.
//   2. The ranks along kDataAxes hold the same weights and see different samples and rows. A reduce-scatter
//   sums
//      their gradients and leaves each rank its shard of the sum (ZeRO stage 1: Rajbhandari et al., SC 2020).
//   3. Each rank updates its shard, and an all-gather brings the new weights to all.
// In norms and in checkpoints each weight counts once: on the first of the ranks that hold copies of it, and
// there on the rank whose shard it is in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "parallel/parameter.hpp"

namespace maestro::parallel {

/// Elements. Every weight starts on a cache line, and arrays are cut into shards of whole blocks.
inline constexpr std::int64_t kBlock = 16;
/// Shard `index` of `count` of a flat array of `size` elements; perhaps empty. No shard is longer than the
/// first.
Range shard_range(std::int64_t size, int index, int count);

class ParameterGroup {
public:
    /// Gives the parameters memory of zeros, all of them trainable or none. They, the mesh and the backend
    /// outlive the group. `compute` is f32, bf16 or f64; in bf16 the model computes with rounded copies, and
    /// the weights themselves stay f32, because most updates are too small to change a bf16 number.
    ParameterGroup(backend::Backend& backend, const Mesh& mesh, DType compute,
                   std::vector<Parameter*> parameters);

    bool trainable() const { return gradient_.rank != 0; }
    std::span<Parameter* const> parameters() const { return parameters_; }
    /// Flat, with the padding between parameters. The gradient is absent (rank 0) where frozen.
    const Tensor& master() const { return master_; }
    const Tensor& gradient() const { return gradient_; }
    std::int64_t size() const { return master_.size(); }
    std::size_t bytes() const;  ///< of all arrays

    /// Of the flat arrays, what is this rank's among those along kDataAxes.
    Range shard() const { return shard_; }
    /// Of the elements of a parameter held here, those in the shard; none where the size is not positive.
    Range shard_of(const Parameter& parameter) const;
    /// Of the held elements `range` of a parameter, those that no earlier rank of the replica holds: what
    /// this rank counts in norms and writes to checkpoints. Ascending, none of them empty.
    std::vector<Range> first_copies(const Parameter& parameter, Range range) const;
    /// Elements held here that other ranks along an axis of the replica hold as well.
    std::int64_t replicated(Axes axes) const;

    /// Steps 1 and 2. Collective over the section; leaves the sum in this rank's shard of the gradient.
    void reduce_gradients(backend::Arena& scratch);
    /// Bytes of scratch that reduce_gradients() takes.
    std::size_t reduce_scratch() const;
    /// Step 3. Collective over `ranks`, those along kDataAxes: the shard of each to all, then
    /// refresh_compute().
    void gather_weights(collective::ProcessGroup& ranks);
    void gather_weights() { gather_weights(mesh_.group(kDataAxes)); }
    /// The rounded copies of the masters (bf16), after they have changed.
    void refresh_compute();
    void zero_gradients();

private:
    void sum_replicated(Axes axes, backend::Arena& scratch);

    backend::Backend& backend_;
    const Mesh& mesh_;
    std::vector<Parameter*> parameters_;
    backend::Buffer master_buffer_, compute_buffer_, gradient_buffer_;
    Tensor master_, compute_, gradient_;
    Range shard_;
    std::vector<std::int64_t> shard_blocks_;  ///< blocks of the shard of each rank along kDataAxes
};

}  // namespace maestro::parallel
