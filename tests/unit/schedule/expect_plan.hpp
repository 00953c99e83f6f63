// The rules of a plan and of its execution, as assertions. They are fatal: callers in a loop return if
// testing::Test::HasFatalFailure().
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "schedule/execution/interleaving.hpp"
#include "schedule/execution/simulate.hpp"
#include "schedule/problem/bounds.hpp"
#include "unit/schedule/plan_check.hpp"
#include "unit/schedule/rules.hpp"

namespace maestro::schedule {

inline void PrintTo(const ChunkTask& task, std::ostream* out) {
    *out << (task.phase == Phase::forward ? 'F' : 'B') << task.chunk << '.' << task.micro_batch;
}

}  // namespace maestro::schedule

namespace maestro::schedule_test {

/// Executed as planned.
inline void expect_rules_as_planned(const schedule::Problem& problem, const schedule::StepPlan& plan) {
    ASSERT_THAT(check_plan(problem, plan), testing::IsEmpty());
    const schedule::Timeline timeline = schedule::simulate(problem, plan);
    ASSERT_THAT(broken_rules(problem, plan, timeline, schedule::Dispatch::planned), testing::IsEmpty());
    ASSERT_NEAR(timeline.makespan_s, plan.makespan_s, 1e-9);
    ASSERT_GE(plan.makespan_s, plan.lower_bound_s * (1 - 1e-9));
    ASSERT_EQ(schedule::decode(schedule::encode(plan)), plan);
}

/// With other times, by lanes that start what is ready.
inline void expect_rules_when_ready(const schedule::Problem& problem, const schedule::StepPlan& plan,
                                    std::uint64_t seed) {
    const schedule::Problem noisy = schedule::with_noise(problem, plan, 0.3, seed);
    const schedule::Timeline timeline = schedule::simulate(noisy, plan, schedule::Dispatch::ready);
    ASSERT_FALSE(timeline.stuck);
    ASSERT_THAT(broken_rules(noisy, plan, timeline, schedule::Dispatch::ready), testing::IsEmpty());
    ASSERT_GE(timeline.makespan_s, lower_bound(noisy) * (1 - 1e-9));
}

}  // namespace maestro::schedule_test
