// Parameters whose gradients are reduced, updated and gathered together, in flat arrays. This file defines
// which ranks sum which gradients:
//
//   1. Ranks of a replica that hold copies of the same weights (norms along tp, KV heads along kv) each
//      compute a partial gradient: a copy has seen the rows or the query heads of one rank only. An
//      all-reduce along that axis sums the partial gradients.
//   2. Ranks along the data axes (kDataAxes, or kExpertDataAxes of experts) hold the same weights and see
//      different samples and rows. A reduce-scatter sums their gradients and leaves each rank its shard of
//      the sum (ZeRO stage 1, Rajbhandari et al., SC 2020).
//   3. Each rank updates the master weights of its shard, and an all-gather distributes the new weights, in
//      the type in which the model computes.
//
// Gradient norms and checkpoints count each weight once: of the ranks that hold copies, on the first one, and
// along the data axes on the rank whose shard it is in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "parallel/parameter.hpp"

namespace maestro::parallel {

/// Elements in a block. Parameters begin and shards end at multiples of it, so that each starts on a cache
/// line.
inline constexpr std::int64_t kBlock = 16;

class ParameterGroup {
public:
    /// Allocates zeroed arrays and points the parameters to their parts of them. Either all parameters are
    /// trainable or none, and all have the same type and data axes. Parameters, mesh and backend outlive the
    /// group. The type is f32, bf16 or f64. In bf16 the model computes with rounded weights, and the rank
    /// that updates a shard keeps its master weights in f32, because most updates are too small to change a
    /// bf16 number (Micikevicius et al., "Mixed precision training", ICLR 2018). Frozen weights need no
    /// masters.
    ParameterGroup(backend::Backend& backend, const Mesh& mesh, std::vector<Parameter*> parameters);

    bool trainable() const { return gradient_.rank != 0; }
    Axes data_axes() const { return data_axes_; }
    std::span<Parameter* const> parameters() const { return parameters_; }
    /// The flat arrays, padding included. The gradient is absent (rank 0) where frozen.
    const Tensor& weights() const { return weights_; }
    const Tensor& gradient() const { return gradient_; }
    /// The master weights of this rank's shard: in f32 and f64 the weights themselves. Absent where frozen in
    /// bf16.
    const Tensor& master() const { return master_; }
    std::int64_t size() const { return weights_.size(); }
    std::size_t bytes() const;  ///< of all arrays
    std::size_t gradient_bytes() const { return gradient_buffer_.bytes(); }

    /// Returns this rank's shard of the flat arrays, along the data axes. All shards have the same size.
    Range shard() const { return shard_; }
    /// Returns which of the held elements of a parameter are in this rank's shard. The range is empty or has
    /// a negative size where none is.
    Range shard_of(const Parameter& parameter) const;
    /// Returns those of the held elements `range` of a parameter of which this rank has the first copy in the
    /// replica. These are what it counts in norms and writes to checkpoints. Ranges ascend and are not empty.
    std::vector<Range> first_copies(const Parameter& parameter, Range range) const;
    /// Returns how many held elements other ranks along `axes` hold as well.
    std::int64_t replicated(Axes axes) const;

    /// Sets the held elements `range` of a parameter: the weights, rounded to their type, and the masters of
    /// those in this rank's shard. `values`: host memory, [range], fp32 or ops::accumulate_type() of the
    /// weights.
    void set_weights(const Parameter& parameter, Range range, const Tensor& values) const;
    /// Returns the elements `range` of a parameter, all of them in this rank's shard, as precisely as they
    /// are kept: the masters, or the weights where there are none.
    Tensor shard_weights(const Parameter& parameter, Range range) const;

    /// Step 1 above among the tp ranks of a replica, whose groups also carry the messages of its tasks:
    /// called where all of them are at the same place of their tasks. Collective over the replica.
    void sum_copies(backend::Arena& scratch);
    /// The rest of steps 1 and 2, after sum_copies(): leaves the sum in this rank's shard of the gradient.
    /// The rest of the gradient is undefined afterwards. Collective over the stage, and over both stages that
    /// hold a tied embedding.
    collective::Operation launch_reduce(backend::Arena& scratch);
    /// Both, waited for.
    void reduce_gradients(backend::Arena& scratch) {
        sum_copies(scratch);
        launch_reduce(scratch).wait();
    }
    /// Return the bytes of scratch memory that sum_copies() and launch_reduce() allocate.
    std::size_t copies_scratch() const;
    std::size_t reduce_scratch() const;
    /// Step 3 above, after the update of the masters: rounds them to this rank's shard of the weights and
    /// distributes the shards of all ranks. Collective over `ranks`, the group along the data axes.
    collective::Operation launch_gather(collective::ProcessGroup& ranks);
    collective::Operation launch_gather() { return launch_gather(data_group()); }
    void gather_weights(collective::ProcessGroup& ranks) { launch_gather(ranks).wait(); }
    void gather_weights() { launch_gather().wait(); }
    void zero_gradients() { zero_gradient({0, size()}); }
    /// Sets the elements `range` of the flat gradient to zero.
    void zero_gradient(Range range);

private:
    /// Calls copy(gradient, packed) for the replicated elements of each parameter and their place in
    /// `packed`.
    template <class Copy>
    void for_each_replicated(Axes axes, const Tensor& packed, Copy&& copy) const;
    void pack(Axes axes, const Tensor& packed) const;
    void unpack(Axes axes, const Tensor& packed) const;
    /// Elements of which several ranks of a replica hold copies, along tp and kv.
    std::int64_t replicated_in_replica() const;
    collective::ProcessGroup& data_group() const { return mesh_.group(data_axes_); }
    collective::Operation launch_sum_of_copies(Axes axes, backend::Arena& scratch);
    collective::Operation reduce_tied(backend::Arena& scratch);
    /// Where NCCL sums: the elements with copies once more, in the order of ranks.
    collective::Operation reduce_with_copies(backend::Arena& scratch);
    collective::Operation launch_reduce_scatter(backend::Arena& scratch,
                                                collective::Sums sums = collective::Sums::automatic);
    std::size_t scratch_of_packed(std::int64_t count, int ranks) const;
    std::size_t scratch_of_copies(Axes axes) const;

    backend::Backend& backend_;
    const Mesh& mesh_;
    std::vector<Parameter*> parameters_;
    Axes data_axes_;
    backend::Buffer weights_buffer_, gradient_buffer_, master_buffer_;
    Tensor weights_, gradient_, master_;
    Range shard_;
    std::vector<std::int64_t> shard_blocks_;  ///< blocks in the shard of each rank
};

}  // namespace maestro::parallel
