#include "cudnn/graphs.hpp"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace maestro::testing_support {

namespace {

void require(cudnn_frontend::error_t found, const char* what) {
    if (found.is_bad()) throw std::runtime_error(fmt::format("{}: {}", what, found.get_message()));
}

std::shared_ptr<cudnn_frontend::DeviceProperties> properties_of(const Json& device) {
    const std::string text = device.dump();
    auto properties = std::make_shared<cudnn_frontend::DeviceProperties>();
    require(properties->deserialize(std::vector<std::uint8_t>(text.begin(), text.end())), "properties");
    return properties;
}

}  // namespace

Json json_of(backend::Graph& graph) {
    require(graph.validate(), "validate");
    Json description;
    graph.serialize(description);
    return description;
}

std::shared_ptr<backend::Graph> graph_of(const Json& description, int architecture) {
    auto graph = std::make_shared<backend::Graph>();
    graph->set_sm_version(architecture);  // nodes copy it when they are created
    require(graph->deserialize(description), "deserialize");
    return graph;
}

std::string verdict(backend::Graph& graph, const Json& device, std::int64_t* workspace) {
    graph.set_device_properties(properties_of(device)).set_sm_version(device.at("deviceVer").get<int>() / 10);
    const std::pair<const char*, std::function<cudnn_frontend::error_t()>> steps[] = {
        {"validate", [&] { return graph.validate(); }},
        {"build_operation_graph", [&] { return graph.build_operation_graph(); }},
        {"create_execution_plans",
         [&] { return graph.create_execution_plans({cudnn_frontend::HeurMode_t::A}); }},
        {"check_support", [&] { return graph.check_support(); }},
        {"build_plans", [&] { return workspace ? graph.build_plans() : cudnn_frontend::error_t{}; }},
        {"get_workspace_size",
         [&] { return workspace ? graph.get_workspace_size(*workspace) : cudnn_frontend::error_t{}; }}};
    for (const auto& [name, step] : steps)
        if (auto found = step(); found.is_bad()) return fmt::format("{}: {}", name, found.get_message());
    return "";
}

}  // namespace maestro::testing_support
