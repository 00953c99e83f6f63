// An encoder that keeps a pipeline fed: steps that end as early as text alone, and short steps that cannot.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/policies.hpp"
#include "unit/schedule/problems.hpp"

namespace maestro::schedule {
namespace {

TEST(Feeding, StepsThatMeetTheConditionsEndWithTextAlone) {
    int hard = 0;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
        const schedule_test::FedStep step = schedule_test::fed_step(seed);
        SCOPED_TRACE(fmt::format("seed {}: p {}, m {}, {} pictures, a {}, g {}", seed, step.stages,
                                 step.micro_batches, step.pictures, step.forward_s, step.backward_s));
        // The places follow from the conditions, without a search.
        const StepPlan plan = make_plan("wavefront", step.problem(), 1, 1);
        ASSERT_LE(plan.makespan_s, step.text_alone_s() * (1 + 1e-9));
        hard += make_plan("fifo", step.problem(), 1).makespan_s > 1.02 * step.text_alone_s() ? 1 : 0;
    }
    EXPECT_GE(hard, 500);
}

}  // namespace
}  // namespace maestro::schedule
