#include "schedule/policies/policies.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "schedule/policies/baselines.hpp"
#include "schedule/policies/components.hpp"

namespace maestro::schedule {

namespace {

/// The wavefront packs micro-batches as if they were full. Where tasks take much time whatever their samples
/// are, one of the simple orders may have fewer of them.
StepPlan plan_shortest(const Problem& problem, std::int64_t step, const SearchEffort& effort,
                       const std::stop_token& unwanted) {
    const auto lacks = [](const StageShape& s) {
        return s.lacking_forward_s > 0 || s.lacking_backward_s > 0;
    };
    if (std::none_of(problem.stages.begin(), problem.stages.end(), lacks))
        return plan_wavefront(problem, step, effort, unwanted);
    StepPlan simple = plan_lpt(problem, step);
    if (StepPlan other = plan_fifo(problem, step); other.makespan_s < simple.makespan_s)
        simple = std::move(other);
    StepPlan plan = plan_wavefront(problem, step, effort, unwanted, simple.makespan_s);
    return plan.makespan_s <= simple.makespan_s ? plan : simple;
}

}  // namespace

StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step,
                   const SearchEffort& effort, const std::stop_token& unwanted) {
    return plan_components(problem, [&](const Problem& component) {
        if (policy == "wavefront") return plan_shortest(component, step, effort, unwanted);
        if (policy == "fifo") return plan_fifo(component, step);
        MAESTRO_CHECK(policy == "lpt", "no policy {}", policy);
        return plan_lpt(component, step);
    });
}

}  // namespace maestro::schedule
