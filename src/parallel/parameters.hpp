// The weights of one section's replica. All trainable weights lie in one flat array, their gradients in
// another, so that summing, sharding and updating run over plain ranges. In bf16 the model computes with a
// rounded copy, and the weights themselves stay fp32: most updates are too small to change a bf16 number.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "backend/arena.hpp"
#include "base/shard.hpp"
#include "parallel/peers.hpp"

namespace maestro::parallel {

/// Elements: every weight starts on a cache line, and arrays of weights are shared out in whole blocks.
inline constexpr std::int64_t kBlock = 16;
/// Share `index` of a flat array of `size` elements, whole blocks, in `count` shares; perhaps empty.
Range flat_share(std::int64_t size, int index, int count);
/// Blocks of each of the shares.
std::vector<std::int64_t> blocks_of_shares(std::int64_t size, int count);
/// A row for each block.
Tensor in_blocks(const Tensor& flat);

enum class Init { normal, residual, ones, zeros };

struct Parameter {
    std::string name;                 ///< "layers.0.attention.qkv.weight"
    std::vector<std::int64_t> shape;  ///< of the logical parameter: one or two dimensions
    Shard shard;                      ///< what this rank holds of it
    std::int64_t offset = 0;          ///< in the flat array, elements
    bool trainable = true;
    bool decay = true;  ///< matrices yes, norms and biases no
    Init init = Init::normal;
    Sharing sharing = Sharing::none;  ///< of `common`
    Range common;                     ///< of the elements held here; empty without sharing
    Tensor master;                    ///< the shard: f32 (f64 where the model computes in f64)
    Tensor weight;                    ///< what the model computes with; the master itself in f32 and f64
    Tensor gradient;                  ///< of the master's type; empty where frozen

    std::int64_t size() const { return shard.size(); }  ///< elements held here
};

/// Of the held elements `range`, those that no rank before this one in the group of the parameter's sharing
/// holds: what it counts in norms and writes. Ascending, none of them empty.
std::vector<Range> first_held(const Parameter& parameter, Range range, const Peers& peers);

/// Owns weights and gradients. Parameters are declared, then allocate() gives them memory and initial values.
class ParameterStore {
public:
    /// `section` and `seed` key the initial weights; `compute` is f32, bf16 or f64.
    ParameterStore(backend::Backend& backend, std::string section, std::uint64_t seed, DType compute);

    /// The reference stays valid. Names are unique. Before allocate(). Without a shard: the whole, which all
    /// tp ranks hold.
    Parameter& declare(std::string name, std::vector<std::int64_t> shape, Init init, bool trainable);
    Parameter& declare(std::string name, std::vector<std::int64_t> shape, Init init, bool trainable,
                       Shard shard, Sharing sharing = Sharing::none, Range common = {});
    /// Trainable parameters first; `residual_scale` is the factor of Init::residual. Fills in the initial
    /// weights.
    void allocate(double residual_scale);

    const std::deque<Parameter>& parameters() const { return parameters_; }
    const Parameter* find(std::string_view name) const;
    backend::Backend& backend() const { return backend_; }
    /// Every weight, flat: the trainable ones, padding, the frozen ones.
    const Tensor& master() const { return master_; }
    /// Of the trainable part, padding included; empty for a frozen section.
    const Tensor& gradient() const { return gradient_; }
    std::int64_t count() const;  ///< weights held here, without padding
    /// Trainable elements held here that the other ranks of that group hold too.
    std::int64_t shared(Sharing sharing) const;
    std::size_t bytes() const;  ///< of all arrays
    DType compute() const { return compute_; }
    /// The compute copy of the masters (bf16), after an update or a load.
    void refresh_compute();
    void zero_gradients();

private:
    void initialize(const Parameter& parameter, double residual_scale);

    backend::Backend& backend_;
    std::string section_;
    std::uint64_t seed_;
    DType compute_;
    std::deque<Parameter> parameters_;
    backend::Buffer master_buffer_;
    backend::Buffer compute_buffer_;
    backend::Buffer gradient_buffer_;
    Tensor master_;
    Tensor copy_;
    Tensor gradient_;
};

/// Trainable elements held here whose gradients the ranks of a lane sum over each other at a time, at most.
std::int64_t most_shared(const ParameterStore& store, const Peers& peers);

}  // namespace maestro::parallel
