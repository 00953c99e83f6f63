// Sections of several stages. Closed forms: m micro-batches of a group, p stages, c = forward + backward of
// a stage.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/execution/simulate.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "unit/schedule/critical_path.hpp"
#include "unit/schedule/expect_plan.hpp"
#include "unit/schedule/problems.hpp"

namespace maestro::schedule {
namespace {

using schedule_test::in_stages;

constexpr double kForward = 1, kBackward = 2, kTogether = kForward + kBackward;

/// Text alone: `micro_batches` of equal costs on one group.
Problem text_only(int stages, int micro_batches) {
    return schedule_test::text_pipeline({.ranks = stages}, micro_batches, kForward, kBackward);
}

TEST(Pipelines, TakeTheTimeOfTheClosedForm) {
    for (const char* policy : {"wavefront", "fifo", "lpt"})
        for (const int p : {1, 2, 4, 8})
            for (int m = 1; m <= 32; ++m) {
                SCOPED_TRACE(fmt::format("{}: {} stages, {} micro-batches", policy, p, m));
                const Problem problem = text_only(p, m);
                const StepPlan plan = make_plan(policy, problem, 1);
                const double expected = (m + p - 1) * kTogether;
                ASSERT_FALSE(plan.window_limited);
                ASSERT_NEAR(plan.makespan_s, expected, 1e-9 * expected);
                ASSERT_NEAR(simulate(problem, plan).makespan_s, expected, 1e-9 * expected);
                ASSERT_LE(plan.lower_bound_s, expected * (1 + 1e-9));
                if (p == 1 || m == 1) {
                    ASSERT_NEAR(plan.lower_bound_s, expected, 1e-9 * expected);
                }
            }
}

/// The stage itself, and those that follow.
TEST(Pipelines, HaveNoMoreInFlightThanStagesAreLeft) {
    for (const int p : {2, 4, 8})
        for (const int m : {1, 3, 7, 20}) {
            const Problem problem = text_only(p, m);
            const Timeline timeline = simulate(problem, make_plan("fifo", problem, 1));
            for (int stage = 0; stage < p; ++stage) {
                std::vector<std::pair<double, int>> changes;
                for (const TimedTask& t : timeline.tasks) {
                    if (t.task.stage != stage) continue;
                    const bool forward = t.task.phase == Phase::forward;
                    changes.emplace_back(forward ? t.start_s : t.end_s, forward ? 1 : -1);
                }
                std::sort(changes.begin(), changes.end());
                int in_flight = 0, most = 0;
                for (const auto& [time, change] : changes) most = std::max(most, in_flight += change);
                EXPECT_EQ(most, std::min(m, p - stage)) << p << " stages, stage " << stage << ", m " << m;
            }
        }
}

/// With windows wide enough the longest stage works without a pause, from the end of the forwards above it to
/// the start of the backwards there.
TEST(Pipelines, OfUnequalStagesRunAtTheRateOfTheLongest) {
    Problem problem = text_only(4, 9);
    const std::vector<double> factor = {0.5, 1, 1.7, 0.8};
    for (SampleCost& sample : problem.samples)
        for (std::size_t s = 0; s < factor.size(); ++s) {
            sample.stages[s].forward_s *= factor[s];
            sample.stages[s].backward_s *= factor[s];
        }
    const double expected = (0.5 + 1 + 9 * 1.7) * kTogether;
    EXPECT_NEAR(lower_bound(problem), expected, 1e-9 * expected);
    EXPECT_GT(make_plan("fifo", problem, 1).makespan_s, 1.05 * expected);
    for (StageShape& shape : problem.stages)
        if (shape.window > 0) shape.window += 2;
    EXPECT_NEAR(make_plan("fifo", problem, 1).makespan_s, expected, 1e-9 * expected);
}

/// What frozen sections send enters at the last stage of a pipeline, as a teacher's hidden states do.
void hidden_states_to_the_last_stage(Problem& problem) {
    for (EdgeShape& e : problem.edges) {
        const int section = problem.stages[static_cast<std::size_t>(e.to)].section;
        if (e.gradient || problem.stages[static_cast<std::size_t>(e.from)].section == section) continue;
        while (e.to + 1 < static_cast<int>(problem.stages.size()) &&
               problem.stages[static_cast<std::size_t>(e.to + 1)].section == section)
            ++e.to;
    }
}

TEST(Pipelines, KeepTheRulesOnRandomProblems) {
    int floats = 0;
    int unlike = 0;
    int pipelined = 0, in_order = 0;  // plans with pipelines, and those that follow the order of wavefront
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        Problem single = schedule_test::any_problem(seed);
        const bool colocated = single.stages.front().first_lane == single.stages.back().first_lane;
        std::vector<int> stages;
        for (std::size_t s = 0; s < single.stages.size(); ++s)
            stages.push_back(colocated ? 1 + static_cast<int>(seed / 2 % 3)
                                       : 1 + static_cast<int>((seed / 2 + 3 * s) % 4));
        // Colocated sections need equally many lanes, but not equally many stages.
        if (StageShape& loss = single.stages.back(); colocated && loss.groups % 2 == 0 && stages[0] < 3) {
            loss.groups /= 2;
            stages.back() = 2 * stages[0];
            ++unlike;
        }
        Problem problem = in_stages(single, stages);
        if (seed % 3 == 0) hidden_states_to_the_last_stage(problem);
        pipelined += problem.pipelined() ? 1 : 0;
        for (const char* policy : {"wavefront", "fifo", "lpt"}) {
            SCOPED_TRACE(fmt::format("{}, seed {}, stages {}", policy, seed, fmt::join(stages, " ")));
            const StepPlan plan = make_plan(policy, problem, 7, {.moves = 20});
            schedule_test::expect_rules_as_planned(problem, plan);
            schedule_test::expect_rules_when_ready(problem, plan, seed);
            ASSERT_THAT(schedule_test::wrong_floats(problem, plan, floats), testing::IsEmpty());
            if (HasFatalFailure()) return;
            if (problem.pipelined() && policy == std::string("wavefront"))
                in_order += plan.window_limited ? 0 : 1;
        }
    }
    EXPECT_GT(floats, 1000);
    EXPECT_GT(unlike, 20);
    EXPECT_GT(pipelined, 250);
    EXPECT_GT(in_order, pipelined / 2);
}

}  // namespace
}  // namespace maestro::schedule
