// Plans for sections whose pipeline ranks hold several chunks. p ranks, v chunks, m micro-batches, c =
// forward + backward of all chunks of a rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "schedule/execution/interleaving.hpp"
#include "schedule/execution/simulate.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "schedule/problem/instance.hpp"
#include "unit/schedule/expect_plan.hpp"
#include "unit/schedule/problems.hpp"

namespace maestro::schedule {
namespace {

using schedule_test::in_pipelines;
using schedule_test::Pipeline;
using schedule_test::text_pipeline;

constexpr double kForward = 1, kBackward = 2;

/// Returns the seconds of a step with uniform costs.
double closed_form(Pipeline shape, int m, double c) {
    return m >= shape.ranks ? m * c + (shape.ranks - 1) * c / shape.chunks
                            : shape.ranks * c + (m - 1) * c / shape.chunks;
}

/// Returns the tasks of a section on a lane, in the order of the plan.
std::vector<ChunkTask> on_lane(const Problem& problem, const StepPlan& plan, int section, int lane) {
    int first = 0;
    while (problem.stages[static_cast<std::size_t>(first)].section != section) ++first;
    std::vector<ChunkTask> tasks;
    for (const Task& task : plan.agendas[static_cast<std::size_t>(lane)]) {
        const StageShape& shape = problem.stages[static_cast<std::size_t>(task.stage)];
        if (shape.section == section)
            tasks.push_back({(task.stage - first) / shape.lane_stride, task.micro_batch, task.phase});
    }
    return tasks;
}

TEST(Chunks, TakeTheTimeOfTheClosedForm) {
    for (const char* policy : {"wavefront", "fifo"})
        for (const int p : {2, 4, 8})
            for (const int v : {2, 3})
                for (int m = 1; m <= 32; ++m)
                    for (const double backward_s : {kBackward, 0.0}) {
                        SCOPED_TRACE(fmt::format("{}: p {}, v {}, m {}, {}", policy, p, v, m, backward_s));
                        const Problem problem = text_pipeline({p, v}, m, kForward, backward_s);
                        const StepPlan plan = make_plan(policy, problem, 1);
                        const double expected = closed_form({p, v}, m, kForward + backward_s);
                        ASSERT_FALSE(plan.window_limited);
                        ASSERT_NEAR(plan.makespan_s, expected, 1e-9 * expected);
                        ASSERT_NEAR(simulate(problem, plan).makespan_s, expected, 1e-9 * expected);
                        ASSERT_NEAR(plan.lower_bound_s, expected, 1e-9 * expected);
                    }
}

TEST(Chunks, AreInterleavedByEveryPolicy) {
    for (const char* policy : {"wavefront", "fifo", "lpt"})
        for (const Pipeline shape : {Pipeline{4, 1}, Pipeline{3, 2}, Pipeline{4, 3}})
            for (const int m : {2, 4, 7, 11, 16}) {
                const Problem problem = text_pipeline(shape, m, kForward, kBackward);
                const StepPlan plan = make_plan(policy, problem, 1);
                for (int rank = 0; rank < shape.ranks; ++rank)
                    ASSERT_EQ(on_lane(problem, plan, 0, rank),
                              interleaved_tasks(shape.ranks, shape.chunks, rank, m, true))
                        << policy << ", " << shape.chunks << " chunks, rank " << rank << ", m " << m;
            }
}

/// Returns the most micro-batches of each stage in flight.
std::vector<int> in_flight(const Problem& problem, const Timeline& timeline) {
    std::vector<int> in_flight(problem.stages.size(), 0), most(in_flight);
    std::vector<std::tuple<double, int, int>> changes;  // time, change, stage
    for (const TimedTask& t : timeline.tasks)
        if (t.task.phase == Phase::forward)
            changes.emplace_back(t.start_s + 1e-6, 1, t.task.stage);
        else
            changes.emplace_back(t.end_s, -1, t.task.stage);
    std::sort(changes.begin(), changes.end());
    for (const auto& [time, change, stage] : changes) {
        const auto s = static_cast<std::size_t>(stage);
        most[s] = std::max(most[s], in_flight[s] += change);
    }
    return most;
}

TEST(Chunks, NeedNoMoreThanItsWindowsAndNoLess) {
    for (const Pipeline shape :
         {Pipeline{2, 2}, Pipeline{4, 2}, Pipeline{3, 3}, Pipeline{4, 4}, Pipeline{5, 1}}) {
        const int p = shape.ranks, v = shape.chunks, stages = p * v;
        std::vector<int> most(static_cast<std::size_t>(stages), 0);
        for (int m = 1; m <= 6 * p; ++m) {
            Problem problem = text_pipeline(shape, m, kForward, kBackward);
            for (StageShape& stage : problem.stages) stage.window = 0;
            const auto now = in_flight(problem, simulate(problem, make_plan("fifo", problem, 1)));
            for (std::size_t s = 0; s < most.size(); ++s) most[s] = std::max(most[s], now[s]);
            // With one chunk the order is not fixed: without a window a rank runs as many forwards as it can.
            for (int s = 0; s < stages && v > 1; ++s)
                ASSERT_EQ(interleaved_window(p, v, s, m), most[static_cast<std::size_t>(s)])
                    << "p " << p << ", v " << v << ", stage " << s << ", up to " << m;
        }
        for (int s = 0; s < stages && v == 1; ++s) EXPECT_EQ(interleaved_window(p, 1, s), p - s);
        for (int s = 0; s < stages && v > 1; ++s)
            EXPECT_EQ(interleaved_window(p, v, s), most[static_cast<std::size_t>(s)]);
    }
    EXPECT_EQ(interleaved_window(4, 1, 0, 3), 3);
}

/// A lane works at the rate of all of its chunks: here that of rank 1, none of whose stages is the longest.
TEST(Chunks, AreLimitedByTheirLaneAndNotByAStage) {
    Problem problem = text_pipeline({2, 2}, 9, kForward, kBackward);
    const std::vector<double> factor = {1.3, 1.2, 0.5, 1.2};
    for (SampleCost& sample : problem.samples)
        for (std::size_t s = 0; s < factor.size(); ++s) {
            sample.stages[s].forward_s *= factor[s];
            sample.stages[s].backward_s *= factor[s];
        }
    EXPECT_THAT(longest_stages(problem), testing::ElementsAre(testing::ElementsAre(1, 3)));
    EXPECT_EQ(critical_stage(problem), 1);
    EXPECT_THAT(whole(problem).bottleneck, testing::ElementsAre(1, 3));
    const double expected = (9 * (1.2 + 1.2) + 1.3) * (kForward + kBackward) / 2;
    EXPECT_DOUBLE_EQ(lower_bound(problem), expected);
    EXPECT_LE(make_plan("lpt", problem, 1).makespan_s, 1.03 * expected);
}

/// Of an encoder that lets one micro-batch through at a time, chunks that want several before the first
/// backward get them one by one.
TEST(Chunks, RunWhereAWindowUpstreamHoldsLessThanARound) {
    Problem single{.stages = {{.groups = 1, .first_lane = 0, .window = 1},
                              {.section = 1, .groups = 1, .first_lane = 1, .window = 1, .loss = true}},
                   .edges = {{0, 1, true}},
                   .lanes = 2,
                   .samples = {}};
    for (int i = 0; i < 6; ++i) single.samples.push_back({.id = i, .stages = {{1, 2, true}, {2, 4, true}}});
    const Problem problem = in_pipelines(single, {{.ranks = 1}, {.ranks = 2, .chunks = 2}});
    for (const char* policy : {"wavefront", "fifo", "lpt"}) {
        const StepPlan plan = make_plan(policy, problem, 1);
        EXPECT_TRUE(plan.window_limited) << policy;
        schedule_test::expect_rules_as_planned(problem, plan);
        EXPECT_DOUBLE_EQ(plan.makespan_s, 6 * 9.0) << policy;
    }
}

/// Sections of several chunks with a loss follow the lists, in the order in which a group's first stage
/// takes its micro-batches.
void expect_lists(const Problem& problem, const StepPlan& plan) {
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const StageShape& last = problem.stages[s];
        if (!last.loss || last.chunks == 1) continue;
        for (int r = 0; r < last.groups; ++r) {
            // The last stage is on the last of the group's lanes.
            const int first_lane = last.lane(r) + 1 - last.lane_stride;
            std::map<int, int> place;  // of micro-batches
            for (const ChunkTask& task : on_lane(problem, plan, last.section, first_lane))
                if (task.chunk == 0 && task.phase == Phase::forward)
                    place.emplace(task.micro_batch, static_cast<int>(place.size()));
            for (int rank = 0; rank < last.lane_stride; ++rank) {
                auto tasks = on_lane(problem, plan, last.section, first_lane + rank);
                for (ChunkTask& task : tasks) task.micro_batch = place.at(task.micro_batch);
                ASSERT_EQ(tasks, interleaved_tasks(last.lane_stride, last.chunks, rank,
                                                   static_cast<int>(place.size()), true));
            }
        }
    }
}

TEST(Chunks, KeepTheRulesOnRandomProblems) {
    int chunked = 0, in_order = 0;  // plans with chunks, and those that follow the order of wavefront
    for (std::uint64_t seed = 0; seed < 240; ++seed) {
        const Problem single = schedule_test::any_problem(seed);
        const bool colocated = single.stages.front().first_lane == single.stages.back().first_lane;
        std::vector<Pipeline> shapes;
        for (std::size_t s = 0; s < single.stages.size(); ++s) {
            const auto number = static_cast<int>(seed / 2 + 5 * s);
            shapes.push_back({1 + (colocated ? static_cast<int>(seed / 2) : number) % 3, 1 + number / 3 % 3});
        }
        const Problem problem = in_pipelines(single, shapes);
        const bool chunks =
            std::any_of(shapes.begin(), shapes.end(), [](Pipeline p) { return p.chunks > 1; });
        chunked += chunks ? 1 : 0;
        for (const char* policy : {"wavefront", "fifo", "lpt"}) {
            SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
            const StepPlan plan = make_plan(policy, problem, 7, {.moves = 20});
            schedule_test::expect_rules_as_planned(problem, plan);
            schedule_test::expect_rules_when_ready(problem, plan, seed);
            if (HasFatalFailure()) return;
            if (chunks && policy == std::string("wavefront")) in_order += plan.window_limited ? 0 : 1;
            if (plan.window_limited || problem.zero_is_none) continue;
            expect_lists(problem, plan);
            if (HasFatalFailure()) return;
        }
    }
    EXPECT_GT(chunked, 150);
    EXPECT_GT(in_order, 9 * chunked / 10);
}

}  // namespace
}  // namespace maestro::schedule
