// An encoder that keeps a pipeline fed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/policies/policies.hpp"
#include "unit/schedule/pipeline_steps.hpp"

namespace maestro::schedule {
namespace {

using schedule_test::UnlikeStep;

TEST(Feeding, StepsThatMeetTheConditionsEndWithTextAlone) {
    int late = 0;  // under fifo
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
        const schedule_test::FedStep step = schedule_test::fed_step(seed);
        SCOPED_TRACE(fmt::format("seed {}: p {}, m {}, {} pictures, a {}, g {}", seed, step.stages,
                                 step.micro_batches, step.pictures, step.forward_s, step.backward_s));
        // The places follow from the conditions, without a search.
        const Problem problem = step.problem();
        const StepPlan plan = make_plan("wavefront", problem, 1, {.moves = 1});
        ASSERT_LE(plan.makespan_s, step.text_alone_s() * (1 + 1e-9));
        late += make_plan("fifo", problem, 1).makespan_s > 1.02 * step.text_alone_s() ? 1 : 0;
    }
    EXPECT_GE(late, 500);
}

/// Means over the seeds of how much longer a step is than text alone, and than the larger of that and the
/// bound.
struct Over {
    double text = 0, larger = 0, bound = 0, fifo = 0;
};

Over measure(const UnlikeStep& step, int seeds) {
    Over mean;
    for (int seed = 0; seed < seeds; ++seed) {
        const Problem problem = step.problem(static_cast<std::uint64_t>(seed));
        const StepPlan plan = make_plan("wavefront", problem, 1);
        const double text_s = make_plan("wavefront", schedule_test::text_alone(problem), 1).makespan_s;
        mean.text += (plan.makespan_s / text_s - 1) / seeds;
        mean.larger += (plan.makespan_s / std::max(text_s, plan.lower_bound_s) - 1) / seeds;
        mean.bound += (plan.makespan_s / plan.lower_bound_s - 1) / seeds;
        mean.fifo += (make_plan("fifo", problem, 1).makespan_s / text_s - 1) / seeds;
    }
    return mean;
}

/// Micro-batches of four unlike samples, a third of them with pictures.
TEST(Feeding, HidesTheEncoderOfUnlikeSamples) {
    for (const int pipelines : {1, 4})
        for (const double load : {0.5, 0.9}) {
            const Over over = measure({.pipelines = pipelines, .load = load}, 2);
            EXPECT_LE(over.text, 0.02) << pipelines << " pipelines, load " << load;
            EXPECT_GE(over.fifo, 0.1) << pipelines << " pipelines, load " << load;
        }
}

TEST(Feeding, HidesWhatItCanInShortSteps) {
    for (const int micro_batches : {4, 8})
        for (const int pipelines : {1, 4}) {
            const Over over =
                measure({.micro_batches = micro_batches, .pipelines = pipelines, .load = 0.9}, 2);
            EXPECT_LE(over.larger, 0.05) << micro_batches << " micro-batches, " << pipelines << " pipelines";
        }
}

TEST(Feeding, StaysNearTheBoundWhereMicroBatchesAreAlike) {
    for (const int pipelines : {1, 4})
        EXPECT_LE(measure({.size = 1, .pipelines = pipelines, .sigma = 0.1}, 2).bound, 0.02)
            << pipelines << " pipelines";
}

}  // namespace
}  // namespace maestro::schedule
