// Helpers for tests of cuDNN graphs. The program is built without the front end's JSON support, which takes
// two thirds of the compile time. This compiles the front end with JSON, and backend/cuda/cudnn_graph.cpp
// with it, once for all tests.
#pragma once

#include <cstdint>
#include <string>

#include <cudnn_frontend/thirdparty/nlohmann/json.hpp>

#include "backend/cuda/cudnn_graph.hpp"

namespace maestro::testing_support {

using Json = nlohmann::json;

/// The front end's description of a graph: its tensors and nodes. Throws std::runtime_error, with the front
/// end's message, if the graph is invalid.
Json json_of(backend::Graph& graph);

/// Builds a graph from its description. Throws std::runtime_error if that fails.
std::shared_ptr<backend::Graph> graph_of(const Json& description, int architecture);

/// cuDNN's verdict on a graph for a device with these properties, which need not exist. Returns an empty
/// string if cuDNN has a plan, else the failed step and its message. With `workspace` the plan is also built,
/// and its workspace in bytes is stored there.
std::string verdict(backend::Graph& graph, const Json& device, std::int64_t* workspace = nullptr);

}  // namespace maestro::testing_support
