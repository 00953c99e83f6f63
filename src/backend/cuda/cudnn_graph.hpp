// The graphs of attention, as cuDNN's front end describes them: what is asked for, not yet how.
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

/// By which graphs and what runs them know an array.
inline std::int64_t uid_of(AttentionArray which) {
    return static_cast<std::int64_t>(which) + 1;
}

/// Forward: q, k, values -> out, lse. Backward: these and dout -> dq, dk, dvalues, summed in an order that is
/// always the same.
std::shared_ptr<Graph> attention_graph(const AttentionClass& c, int architecture);

/// Loads the library if it is not loaded; its version as 91900, or 0 where there is none that is new enough.
std::size_t cudnn_version();

}  // namespace maestro::backend
