// One weight of a model: which part of it a rank holds, and which other ranks hold copies of that part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/shard.hpp"
#include "base/tensor.hpp"
#include "parallel/mesh.hpp"

namespace maestro::parallel {

enum class Init { normal, residual, ones, zeros };

/// Rows of the logical parameter that a rank holds. A fused weight has several parts: queries, keys, values.
/// `replicated`: the axes of the replica along which other ranks hold the same rows. Ranks along kDataAxes
/// always do.
struct ParameterPart {
    Range rows;
    Axes replicated = {};
};

struct Parameter {
    std::string name;                 ///< "layers.0.attention.qkv.weight"
    std::vector<std::int64_t> shape;  ///< of the logical parameter: one or two dimensions
    Shard shard;                      ///< what this rank holds of it
    /// Ranges of the elements held here that other ranks of the replica hold as well, ascending.
    struct Replicated {
        Range elements;
        Axes axes;
    };
    std::vector<Replicated> replicated;
    bool trainable = true;
    bool decay = true;  ///< weight decay: matrices yes, norms and biases no
    Init init = Init::normal;
    std::int64_t offset = 0;  ///< in the arrays of its group, elements
    Tensor master;            ///< the shard: f32 (f64 where the model computes in f64)
    Tensor weight;            ///< what the model computes with; the master itself in f32 and f64
    Tensor gradient;          ///< of the master's type; empty where frozen

    std::int64_t size() const { return shard.size(); }  ///< elements held here
};

}  // namespace maestro::parallel
