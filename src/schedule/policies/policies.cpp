#include "schedule/policies/policies.hpp"

#include "base/check.hpp"
#include "schedule/policies/baselines.hpp"
#include "schedule/policies/components.hpp"
#include "schedule/policies/wavefront.hpp"

namespace maestro::schedule {

StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step, std::int64_t moves,
                   const std::stop_token& unwanted) {
    return plan_components(problem, [&](const Problem& component) {
        if (policy == "wavefront") return plan_wavefront(component, step, moves, unwanted);
        if (policy == "fifo") return plan_fifo(component, step);
        MAESTRO_CHECK(policy == "lpt", "no policy {}", policy);
        return plan_lpt(component, step);
    });
}

}  // namespace maestro::schedule
