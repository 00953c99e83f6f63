#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "schedule/execution/simulate.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/policies/wavefront.hpp"
#include "unit/schedule/critical_path.hpp"
#include "unit/schedule/problems.hpp"
#include "unit/schedule/rules.hpp"

namespace maestro::schedule {
namespace {

/// One encoder lane, one language lane: a sample with a picture (1 s forward, `backward_s`, then 1 s each),
/// and `texts` samples of 1 s each way.
Problem one_picture(int texts, double backward_s) {
    const bool frozen = backward_s == 0;
    Problem problem{
        .stages = {{.groups = 1, .first_lane = 0, .window = 0, .backward = !frozen},
                   {.section = 1, .groups = 1, .first_lane = 1, .window = 1, .backward = true, .loss = true}},
        .edges = {{0, 1, !frozen}},
        .lanes = 2,
        .samples = {{.id = 0, .stages = {{1, backward_s, true}, {1, 1, true}}}}};
    for (int i = 1; i <= texts; ++i)
        problem.samples.push_back({.id = i, .stages = {{0, 0, false}, {1, 1, true}}});
    return problem;
}

/// How long the picture can wait on the language lane, seconds.
double float_of_picture(const StepPlan& plan) {
    for (const Task& t : plan.agendas[1])
        if (t.phase == Phase::forward &&
            plan.batches[1][0][static_cast<std::size_t>(t.micro_batch)].samples[0] == 0)
            return t.float_s;
    return -1;
}

TEST(Ready, DoesNotOvertakeWhatTheStepWaitsFor) {
    // The picture waits for its encoder and goes first: 1 + 2 + 3 = 6. Text first would end at 2 + 2 + 3 = 7.
    const Problem problem = one_picture(1, 3);
    const StepPlan plan = plan_wavefront(problem, 1);
    EXPECT_DOUBLE_EQ(plan.makespan_s, 6);
    EXPECT_NEAR(float_of_picture(plan), 0, 1e-7);
    EXPECT_DOUBLE_EQ(simulate(problem, plan, Dispatch::ready).makespan_s, 6);
    StepPlan any = plan;
    for (Task& t : any.agendas[1]) t.float_s = 2;
    const Timeline overtakes = simulate(problem, any, Dispatch::ready);
    EXPECT_DOUBLE_EQ(overtakes.makespan_s, 7);
    EXPECT_THAT(schedule_test::broken_rules(problem, plan, overtakes, Dispatch::ready),
                testing::Contains(testing::HasSubstr("overtakes what it may not")));
}

TEST(Ready, OvertakesWhatCanWait) {
    // A text, then the picture, whose backward ends 3 s before the other texts do.
    const Problem problem = one_picture(4, 3);
    const StepPlan plan = plan_wavefront(problem, 1);
    EXPECT_DOUBLE_EQ(plan.makespan_s, 10);
    EXPECT_NEAR(float_of_picture(plan), 3, 1e-7);
    Problem late = problem;
    late.samples[0].stages[0].forward_s = 5;
    EXPECT_DOUBLE_EQ(simulate(late, plan).makespan_s, 13);
    // Three texts, the picture at 6, the last text beside its backward.
    EXPECT_DOUBLE_EQ(simulate(late, plan, Dispatch::ready).makespan_s, 11);
}

TEST(Ready, HoldsNothingBackWhereNoBackwardFollows) {
    EXPECT_EQ(float_of_picture(plan_wavefront(one_picture(4, 0), 1)),
              std::numeric_limits<double>::infinity());
}

TEST(Ready, KnowsHowLongATaskCanWaitOnRandomProblems) {
    int compared = 0;
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
        const Problem problem = schedule_test::any_problem(seed);
        for (const char* policy : {"wavefront", "fifo", "lpt"}) {
            SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
            ASSERT_THAT(
                schedule_test::wrong_floats(problem, make_plan(policy, problem, 7, {.moves = 20}), compared),
                testing::IsEmpty());
        }
    }
    EXPECT_GT(compared, 10'000);
}

}  // namespace
}  // namespace maestro::schedule
