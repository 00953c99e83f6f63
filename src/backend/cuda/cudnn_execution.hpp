// The part of attention that calls cuDNN: it builds and executes graphs. Tests without a GPU replace this
// class with one that computes a graph on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "backend/cuda/cudnn_graph.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// Owns the cuDNN handle. All graphs run on the stream that it was constructed with.
class GraphExecution {
public:
    explicit GraphExecution(Stream stream);
    ~GraphExecution();
    GraphExecution(const GraphExecution&) = delete;
    GraphExecution& operator=(const GraphExecution&) = delete;

    /// Builds an execution plan for a graph. Returns the bytes of workspace that it needs.
    std::size_t build(Graph& graph, const AttentionClass& c);
    /// Launches a built graph. `arrays`: device addresses by uid.
    void execute(Graph& graph, std::unordered_map<std::int64_t, void*> arrays, void* workspace,
                 std::size_t workspace_bytes, const AttentionClass& c);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace maestro::backend
