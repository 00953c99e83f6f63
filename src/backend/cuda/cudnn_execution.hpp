// Where cuDNN itself builds and executes graphs on a GPU. Tests without one put a stand-in in its place.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "backend/cuda/cudnn_graph.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// Owns the library's handle; every graph goes to the stream that it was made for.
class GraphExecution {
public:
    explicit GraphExecution(Stream stream);
    ~GraphExecution();
    GraphExecution(const GraphExecution&) = delete;
    GraphExecution& operator=(const GraphExecution&) = delete;

    /// Builds the plan of a described graph; returns the bytes of workspace that it takes.
    std::size_t build(Graph& graph, const AttentionClass& c);
    /// Queues up a built graph. `arrays` by uid.
    void execute(Graph& graph, std::unordered_map<std::int64_t, void*> arrays, void* workspace,
                 std::size_t workspace_bytes, const AttentionClass& c);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace maestro::backend
