#include "backend/cuda/cudnn_execution.hpp"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include "base/error.hpp"

namespace maestro::backend {

struct GraphExecution::State {
    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        if (handle) cudnn_frontend::detail::destroy_handle(handle);
    }
    cudnnHandle_t handle = nullptr;
};

namespace {

/// Callers catch this and continue without the library.
[[noreturn]] void fail(const std::string& what) {
    throw Error(ExitCode::broken_invariant, "cuDNN: " + what);
}

void check_call(cudnnStatus_t found, const char* what) {
    if (found != CUDNN_STATUS_SUCCESS)
        fail(fmt::format("{}: {}", what, cudnn_frontend::detail::get_error_string(found)));
}

void check_graph(cudnn_frontend::error_t found, const char* what, const AttentionClass& c) {
    if (found.is_good()) return;
    fail(fmt::format(
        "does not {} attention{}{} of {} sequences of {} at most, {} heads, {} key heads of {}: {}", what,
        c.backward ? " backward" : "", c.causal ? ", causal," : "", c.sequences, c.max_seqlen, c.heads,
        c.kv_heads, c.dim, found.get_message()));
}

}  // namespace

GraphExecution::GraphExecution(Stream stream) : state_(std::make_unique<State>()) {
    check_call(cudnn_frontend::detail::create_handle(&state_->handle), "creating a handle");
    check_call(cudnn_frontend::detail::set_stream(state_->handle, stream), "setting the handle's stream");
}

GraphExecution::~GraphExecution() = default;

std::size_t GraphExecution::build(Graph& graph, const AttentionClass& c) {
    const cudnnHandle_t handle = state_->handle;
    check_graph(graph.validate(), "describe", c);
    check_graph(graph.build_operation_graph(handle), "take", c);
    check_graph(graph.create_execution_plans({cudnn_frontend::HeurMode_t::A}), "plan", c);
    check_graph(graph.check_support(), "support", c);
    check_graph(graph.build_plans(), "build", c);
    std::int64_t bytes = 0;
    check_graph(graph.get_workspace_size(bytes), "size", c);
    return static_cast<std::size_t>(bytes);
}

void GraphExecution::execute(Graph& graph, std::unordered_map<std::int64_t, void*> arrays, void* workspace,
                             std::size_t, const AttentionClass& c) {
    check_graph(graph.execute(state_->handle, arrays, workspace), "execute", c);
}

}  // namespace maestro::backend
