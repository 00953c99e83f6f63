#include "backend/cuda/cudnn_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>

#include "backend/cuda/cudnn_execution.hpp"
#include "base/check.hpp"
#include "base/log.hpp"

namespace maestro::backend {

namespace {

/// Owns the handle and a plan for every class that was asked for.
class Plans final : public FusedAttention {
public:
    Plans(Stream stream, int architecture) : execution_(stream), architecture_(architecture) {}
    bool prepare(const AttentionClass& c) override {
        const auto at = plans_.find(c);
        return (at != plans_.end() ? at : plans_.emplace(c, built(c)).first)->second.has_value();
    }
    void run(const AttentionClass& c, const AttentionArrays& arrays, void* workspace) override {
        const auto at = plans_.find(c);
        MAESTRO_CHECK(at != plans_.end() && at->second, "a class of attention that was not prepared");
        const Plan& plan = *at->second;
        std::unordered_map<std::int64_t, void*> by_uid;
        for (std::size_t i = 0; i < arrays.size(); ++i)
            if (plan.uses[i]) by_uid.emplace(uid_of(static_cast<AttentionArray>(i)), arrays[i]);
        execution_.execute(*plan.graph, std::move(by_uid), workspace, plan.workspace, c);
    }
    std::size_t plans() const override {
        return static_cast<std::size_t>(std::count_if(
            plans_.begin(), plans_.end(), [](const auto& each) { return each.second.has_value(); }));
    }

private:
    struct Plan {
        std::shared_ptr<Graph> graph;
        std::array<bool, std::tuple_size_v<AttentionArrays>> uses;
        std::size_t workspace;
    };

    /// What the library has no plan for is no reason to end the run: there are kernels for everything.
    std::optional<Plan> built(const AttentionClass& c) {
        try {
            return build(c);
        } catch (const std::exception& error) {  // the front end has its own
            log::write_error(fmt::format("own kernels attend: {}", error.what()));
            return {};
        }
    }
    Plan build(const AttentionClass& c) {
        Plan plan{attention_graph(c, architecture_), {}, 0};
        plan.workspace = execution_.build(*plan.graph, c);
        const std::size_t planned = attention_workspace(c, architecture_);
        if (plan.workspace > planned)
            throw Error(ExitCode::broken_invariant,
                        fmt::format("cuDNN wants {} bytes of workspace for {} sequences of {} at most, {} "
                                    "are planned",
                                    plan.workspace, c.sequences, c.max_seqlen, planned));
        for (std::size_t i = 0; i < plan.uses.size(); ++i) {
            const auto which = static_cast<AttentionArray>(i);
            const bool only_backward = which == AttentionArray::dout || which == AttentionArray::dq ||
                                       which == AttentionArray::dk || which == AttentionArray::dvalues ||
                                       which == AttentionArray::dvalue_offsets;
            const bool offsets = which >= AttentionArray::q_offsets && which < AttentionArray::q_lengths;
            plan.uses[i] = (c.backward || !only_backward) && !(c.padded && offsets);
        }
        return plan;
    }

    GraphExecution execution_;
    int architecture_;
    std::map<AttentionClass, std::optional<Plan>> plans_;  ///< none where it failed
};

}  // namespace

bool has_cudnn(int architecture) {
    return backward_form(architecture) != BackwardForm::none && cudnn_version() > 0;
}

CudnnAttention make_cudnn_attention(Stream stream, int architecture) {
    if (backward_form(architecture) == BackwardForm::none)
        return {nullptr, "cuDNN not asked on this architecture: attention by own kernels"};
    const std::size_t version = cudnn_version();
    if (version == 0) return {nullptr, "no cuDNN of 9.18 or later: attention by own kernels"};
    const std::string name =
        fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    try {
        return {std::make_unique<Plans>(stream, architecture), name};
    } catch (const std::exception& error) {  // the front end has its own
        return {nullptr, fmt::format("{} fails: attention by own kernels ({})", name, error.what())};
    }
}

}  // namespace maestro::backend
