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

/// Owns the cuDNN handle and the plans of all classes that were requested.
class CudnnPlans final : public FusedAttention {
public:
    CudnnPlans(Stream stream, AttentionSupport support) : execution_(stream), support_(support) {}
    bool prepare(const AttentionClass& c) override {
        const auto at = plans_.find(c);
        return (at != plans_.end() ? at : plans_.emplace(c, try_build(c)).first)->second.has_value();
    }
    void run(const AttentionClass& c, const AttentionArrays& arrays, void* workspace) override {
        const auto at = plans_.find(c);
        MAESTRO_CHECK(at != plans_.end() && at->second, "attention of a class that was not prepared");
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

    /// No plan where the library does not support the class. That is no error: Maestro has kernels for all of
    /// them.
    std::optional<Plan> try_build(const AttentionClass& c) {
        try {
            return build(c);
        } catch (const std::bad_alloc&) {
            throw;
        } catch (const std::exception& error) {  // the front end throws exceptions of other types
            log::write_error(fmt::format("attention uses Maestro's kernels: {}", error.what()));
            return {};
        }
    }
    Plan build(const AttentionClass& c) {
        Plan plan{attention_graph(c, support_.architecture), {}, 0};
        plan.workspace = execution_.build(*plan.graph, c);
        const std::size_t planned = attention_workspace(c, support_);
        if (plan.workspace > planned)
            throw Error(
                ExitCode::broken_invariant,
                fmt::format("cuDNN needs {} bytes of workspace for {} sequences of at most {} tokens, {} "
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
    AttentionSupport support_;
    std::map<AttentionClass, std::optional<Plan>> plans_;  ///< none where building failed
};

}  // namespace

AttentionSupport cudnn_support(int architecture) {
    return attention_support_of(architecture, cudnn_version());
}

CudnnAttention make_cudnn_attention(Stream stream, int architecture) {
    if (backward_form(architecture) == BackwardForm::none)
        return {nullptr, "cuDNN is not used on this architecture: attention by Maestro's kernels"};
    const std::size_t version = cudnn_version();
    if (version == 0) return {nullptr, "no cuDNN 9.18 or later: attention by Maestro's kernels"};
    const std::string name =
        fmt::format("cuDNN {}.{}.{}{}", version / 10000, version / 100 % 100, version % 100,
                    version < kLinearBackward ? " (9.25 or later is recommended)" : "");
    try {
        return {std::make_unique<CudnnPlans>(stream, cudnn_support(architecture)), name};
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {  // the front end throws exceptions of other types
        return {nullptr, fmt::format("{} fails: attention by Maestro's kernels ({})", name, error.what())};
    }
}

}  // namespace maestro::backend
