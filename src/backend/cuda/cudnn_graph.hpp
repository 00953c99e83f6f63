// Attention as graphs of cuDNN's front end. A graph describes the computation; a plan, built later,
// implements it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/fused_attention.hpp"

namespace cudnn_frontend::graph {
class Graph;
}

namespace maestro::backend {

using Graph = cudnn_frontend::graph::Graph;

/// The uid that identifies an array in graphs and in their execution.
inline std::int64_t uid_of(AttentionArray which) {
    return static_cast<std::int64_t>(which) + 1;
}

/// Forward: q, k, values -> out, lse. Backward: these and dout -> dq, dk, dvalues, by deterministic
/// algorithms.
std::shared_ptr<Graph> attention_graph(const AttentionClass& c, int architecture);

/// Loads the library at the first call. Returns its version (91900 for 9.19.0), or 0 where none is installed
/// that is new enough.
std::size_t cudnn_version();

}  // namespace maestro::backend
