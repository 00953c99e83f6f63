// Steps that begin and end with longer micro-batches, beside which gathers and sums go on.
#include "schedule/execution/hide_sums.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "schedule/execution/simulate.hpp"
#include "schedule/policies/policies.hpp"
#include "unit/schedule/plan_check.hpp"
#include "unit/schedule/problems.hpp"

namespace maestro::schedule {
namespace {

/// When the last of the stage's groups has what the sum leaves after its last backward, with what its first
/// forward waits for the gather.
double end_with_sums(const Problem& problem, const StepPlan& plan, int stage) {
    const StageShape& shape = problem.stages[stage];
    double latest_s = 0;
    for (int group = 0; group < shape.groups; ++group) {
        double wait_s = -1, end_s = 0;
        for (const TimedTask& t : simulate(problem, plan).tasks) {
            if (t.task.stage != stage || t.group != group) continue;
            if (t.task.phase == Phase::forward && wait_s < 0)
                wait_s = std::max(0.0, shape.gather_s - t.end_s);
            if (t.task.phase == Phase::backward) end_s = std::max(t.end_s, t.start_s + shape.sum_s);
        }
        latest_s = std::max(latest_s, end_s + std::max(wait_s, 0.0));
    }
    return latest_s;
}

/// One group of a section with a loss, whose samples take f and 2 f seconds.
Problem text(const std::vector<double>& forward_s, double sum_s, double gather_s) {
    Problem problem;
    problem.stages.push_back({.loss = true, .sum_s = sum_s, .gather_s = gather_s});
    for (const double f : forward_s)
        problem.samples.push_back({static_cast<std::int64_t>(problem.samples.size()),
                                   {{.forward_s = f, .backward_s = 2 * f, .active = true}}});
    return problem;
}

/// The least of what the sum and the gather can leave, over all samples that may be first and last.
double least_left(const std::vector<double>& forward_s, double sum_s, double gather_s) {
    double least = sum_s + gather_s;
    for (std::size_t first = 0; first < forward_s.size(); ++first)
        for (std::size_t last = 0; last < forward_s.size(); ++last)
            if (first != last)
                least = std::min(least, std::max(0.0, sum_s - 2 * forward_s[last]) +
                                            std::max(0.0, gather_s - forward_s[first]));
    return least;
}

TEST(HideSums, TheFirstAndTheLastMicroBatchAreLongEnough) {
    const std::vector<std::vector<double>> steps = {
        {1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}, {1, 1, 6, 1}, {2, 2, 2}, {1, 3, 7, 2, 9}};
    for (const auto& forward_s : steps)
        for (const double sum_s : {0.5, 6.0, 9.0, 30.0})
            for (const double gather_s : {0.0, 2.5, 20.0}) {
                SCOPED_TRACE(testing::Message() << testing::PrintToString(forward_s) << ", sums of " << sum_s
                                                << " s, gathers of " << gather_s);
                const Problem problem = text(forward_s, sum_s, gather_s);
                double work_s = 0;
                for (const double f : forward_s) work_s += 3 * f;
                EXPECT_NEAR(end_with_sums(problem, make_plan("wavefront", problem, 1), 0),
                            work_s + least_left(forward_s, sum_s, gather_s), 1e-9);
            }
}

/// With vision upstream: a good plan by the rules, which ends no later with its sums than without this
/// change, and in many steps earlier.
TEST(HideSums, StepsEndNoLater) {
    int earlier = 0;
    constexpr int kSteps = 60;
    for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Problem problem = schedule_test::two_lanes(seed, 0.9, 0.4);
        const StepPlan before = make_plan("wavefront", problem, 1);
        double longest_s = 0;
        for (const SampleCost& sample : problem.samples)
            longest_s = std::max(longest_s, sample.stages[1].backward_s);
        problem.stages[1].sum_s = longest_s;
        const StepPlan plan = make_plan("wavefront", problem, 1);
        EXPECT_THAT(schedule_test::check_plan(problem, plan), testing::IsEmpty());
        const double before_s = end_with_sums(problem, before, 1), with_s = end_with_sums(problem, plan, 1);
        EXPECT_LE(with_s, before_s * (1 + 1e-12));
        earlier += with_s < before_s ? 1 : 0;
    }
    EXPECT_GE(earlier, kSteps / 2);
}

}  // namespace
}  // namespace maestro::schedule
