// One parameter of a model: which part of it a rank holds, and which other ranks hold copies of that part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/shard.hpp"
#include "base/tensor.hpp"
#include "parallel/mesh.hpp"

namespace maestro::parallel {

/// How a parameter is initialized. `residual`: normal, scaled by the factor that ParameterStore::allocate()
/// takes, for the projections that add to the residual stream. `kaiming_uniform`: between -1 and 1 over the
/// square root of the columns, as PyTorch initializes a linear layer.
enum class Init { normal, residual, kaiming_uniform, ones, zeros };

/// Consecutive rows of the logical parameter that a rank holds. A fused weight has several: of queries,
/// keys and values. `replicated` are the axes within the replica along which other ranks hold the same rows;
/// ranks along the parameter's data axes always do.
struct ParameterRows {
    Range rows;
    Axes replicated = {};
};

struct Parameter {
    std::string name;                 ///< "layers.0.attention.qkv.weight"
    std::vector<std::int64_t> shape;  ///< of the logical parameter: one or two dimensions
    Shard shard;                      ///< the part that this rank holds
    /// Ranges of the held elements that other ranks along `axes` hold as well, ascending.
    struct Replicated {
        Range elements;
        Axes axes;
    };
    std::vector<Replicated> replicated;
    /// Ranks along these axes hold the same elements: kDataAxes or, of experts, kExpertDataAxes.
    Axes data_axes = kDataAxes;
    bool trainable = true;
    /// Of the weights: the one that the section computes in, or ops::accumulate_type() of it for a parameter
    /// that ParameterStore::keep_precise() was told of.
    DType type = DType::f32;
    bool decay = true;  ///< whether weight decay applies: to matrices, not to norms and biases
    /// Above 0: a bias by which a router balances its experts. It has no gradient: Optimizer::balance() moves
    /// it by this, down for experts with more choices than the mean and up for those with fewer.
    double balance_step = 0;
    Init init = Init::normal;
    std::int64_t offset = 0;  ///< element at which it begins in the flat arrays of its group
    // Views of the group's arrays, in the form of the shard.
    Tensor weight;    ///< what the model computes with, of its type
    Tensor gradient;  ///< f32 (f64 where the model computes in f64); absent where frozen

    std::int64_t size() const { return shard.size(); }  ///< elements held by this rank
};

/// Whether a parameter of this name belongs to a LoRA adapter: "layers.0.mlp.down.lora_A.weight".
inline bool is_adapter(std::string_view name) {
    return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

/// Of a parameter that a model may lack: absent where it is null.
inline Tensor weight_of(const Parameter* parameter) {
    return parameter ? parameter->weight : Tensor{};
}
inline Tensor gradient_of(const Parameter* parameter) {
    return parameter ? parameter->gradient : Tensor{};
}

}  // namespace maestro::parallel
