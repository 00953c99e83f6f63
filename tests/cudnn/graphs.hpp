// What tests ask of the graphs of cuDNN's front end. The program does without the front end's JSON, which
// takes two thirds of the time to compile: here is the front end with it, and with the program's own
// description of attention (backend/cuda/cudnn_graph.hpp), compiled once for all tests.
#pragma once

#include <cstdint>
#include <string>

#include <cudnn_frontend/thirdparty/nlohmann/json.hpp>

#include "backend/cuda/cudnn_graph.hpp"

namespace maestro::testing_support {

using Json = nlohmann::json;

/// What the front end says of a graph: its tensors and its nodes. Throws std::runtime_error, with the front
/// end's words, for one that is not valid.
Json json_of(backend::Graph& graph);

/// The graph that was described so. Throws std::runtime_error where it cannot be.
std::shared_ptr<backend::Graph> graph_of(const Json& description, int architecture);

/// Judges for a device that need not be there, by its properties as the front end names them: empty where
/// cuDNN has a plan, else the step that refuses and why. With `workspace` the plan is built, too, and the
/// bytes that it takes are told.
std::string verdict(backend::Graph& graph, const Json& device, std::int64_t* workspace = nullptr);

}  // namespace maestro::testing_support
