// Lower bounds of steps with pipelines, against the exact solver and closed forms.
#include "schedule/problem/bounds.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/lane_bounds.hpp"
#include "unit/schedule/exact.hpp"
#include "unit/schedule/problems.hpp"

namespace maestro::schedule {
namespace {

/// A language section of one to three stages and one or two groups, with an encoder, a frozen teacher or
/// neither, each of one or two stages: three or four samples, for the exact solver.
Problem tiny_pipelines(std::uint64_t seed) {
    const Random random(seed, "tiny");
    std::uint64_t next = 0;
    const auto below = [&](int n) {
        return static_cast<int>(random.bits(next++) % static_cast<std::uint64_t>(n));
    };
    const auto cost = [&] { return 0.2 + random.uniform(next++); };
    const int groups = 1 + below(4) / 3, kind = below(4);
    const bool encoder = kind < 2, teacher = kind == 2;
    Problem single;
    std::vector<int> stages;
    if (encoder || teacher) {
        single.stages.push_back({.groups = 1, .window = below(3), .backward = encoder});
        single.edges.push_back({0, 1, encoder});
        stages.push_back(1 + below(2));
        single.lanes = 1;
    }
    const int language = static_cast<int>(single.stages.size());
    single.stages.push_back(
        {.section = language, .groups = groups, .first_lane = single.lanes, .window = 1, .loss = true});
    single.lanes += groups;
    stages.push_back(1 + below(3));
    const int samples = 3 + below(2);
    for (int i = 0; i < samples; ++i) {
        SampleCost sample{.id = i, .stages = {}};
        if (encoder || teacher) {
            const bool active = teacher || below(2) == 0;
            sample.stages.push_back({active ? cost() : 0, active && encoder ? 2 * cost() : 0, active});
        }
        sample.stages.push_back({3 * cost(), 6 * cost(), true});
        single.samples.push_back(std::move(sample));
    }
    Problem problem = schedule_test::in_stages(single, stages);
    // Stages are not alike, and some windows are smaller or wider than 1F1B needs.
    for (SampleCost& sample : problem.samples)
        for (TaskCost& stage : sample.stages) {
            const double factor = 0.5 + random.uniform(next++);
            stage.forward_s *= factor;
            stage.backward_s *= factor;
        }
    for (StageShape& stage : problem.stages)
        if (stage.window > 0) stage.window = std::max(1, stage.window + below(4) - 1);
    return problem;
}

TEST(LowerBound, OfPipelinesHoldsForTheShortestSchedule) {
    int proven = 0, by_window = 0, tight = 0;
    double ours = 0, best = 0;
    for (std::uint64_t seed = 0; seed < 120; ++seed) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        const Problem problem = tiny_pipelines(seed);
        const StepPlan plan = make_plan("wavefront", problem, 1, {.moves = 300});
        const auto exact = schedule_test::shortest(problem, plan.makespan_s * (1 + 1e-9), 20'000);
        if (!exact.proven) continue;
        ++proven;
        ASSERT_GE(exact.makespan_s, plan.lower_bound_s * (1 - 1e-9));
        ours += plan.makespan_s;
        best += exact.makespan_s;
        by_window += window_bound(SamplePaths(problem)) > 0.999 * plan.lower_bound_s ? 1 : 0;
        tight += exact.makespan_s < 1.0001 * plan.lower_bound_s ? 1 : 0;
    }
    EXPECT_GE(proven, 80);
    EXPECT_GE(by_window, 20);
    EXPECT_GE(tight, 30);
    // All stages of ours run the micro-batches in one order; the shortest schedule may have several.
    EXPECT_LE(ours / best, 1.005);
}

/// Four micro-batches of one second on each of four stages, one with a picture: its own chain is the bound.
TEST(LowerBound, OfAPipelineKnowsTheChainThroughItsStages) {
    Problem problem = schedule_test::in_stages(
        {.stages = {{.groups = 1, .window = 0},
                    {.section = 1, .groups = 1, .first_lane = 1, .window = 0, .loss = true}},
         .edges = {{0, 1, true}},
         .lanes = 2,
         .samples = {{.id = 0, .stages = {{1.2, 2.4, true}, {4.0 / 3, 8.0 / 3, true}}}}},
        {1, 4});
    EXPECT_NEAR(lower_bound(problem), 1.2 + 4 + 2.4, 1e-9);
    for (int i = 1; i < 4; ++i) {
        problem.samples.push_back(problem.samples.front());
        problem.samples.back().id = i;
        problem.samples.back().stages.front() = {};
    }
    EXPECT_NEAR(lower_bound(problem), 1.2 + 4 + 2.4, 1e-9);
    // Without the picture the last stage waits for the forwards of the others, and they for its backwards.
    problem.samples.front().stages.front() = {};
    EXPECT_NEAR(lower_bound(problem), 4 + 3, 1e-9);
    // Every micro-batch is on its way through all stages for 4 s: one at a time takes 16 s, two 8.
    problem.stages[1].window = 1;
    EXPECT_NEAR(lower_bound(problem), 16, 1e-9);
    problem.stages[1].window = 2;
    EXPECT_NEAR(lower_bound(problem), 8, 1e-9);
}

/// An encoder of two stages with one micro-batch of four samples in flight, whose samples two groups work on:
/// F of both stages, the work of two samples on each group, B of both stages, and the same again.
TEST(LowerBound, OfAWindowKnowsTheWorkOfTheGroupsThatAMicroBatchFeeds) {
    constexpr double kEncoder = 1, kLanguage = 10;
    constexpr int kSamples = 8, kMicroBatch = 4;
    Problem problem;
    problem.stages = {
        {.section = 0, .lane_stride = 2, .micro_batch = kMicroBatch, .window = 1},
        {.section = 0, .first_lane = 1, .lane_stride = 2, .micro_batch = kMicroBatch, .window = 1},
        {.section = 1, .groups = 2, .first_lane = 2, .window = kSamples, .loss = true}};
    problem.edges = {{.from = 0, .to = 1, .gradient = true}, {.from = 1, .to = 2, .gradient = true}};
    problem.lanes = 4;
    for (int i = 0; i < kSamples; ++i) {
        const TaskCost encoder{.forward_s = kEncoder, .backward_s = kEncoder, .active = true},
            language{.forward_s = kLanguage, .backward_s = kLanguage, .active = true};
        problem.samples.push_back({.id = i, .stages = {encoder, encoder, language}});
    }
    const double in_flight = kMicroBatch * 4 * kEncoder + kMicroBatch / 2 * 2 * kLanguage;
    EXPECT_NEAR(lower_bound(problem), kSamples / kMicroBatch * in_flight, 1e-9);
    EXPECT_NEAR(make_plan("wavefront", problem, 1).makespan_s, kSamples / kMicroBatch * in_flight, 1e-9);
}

/// Vision on the lanes of a pipeline: all work over the stages, and what the last of them waits for.
TEST(LowerBound, OfLanesThatStagesShareCountsAllTheirWork) {
    Problem single{.stages = {{.groups = 1, .window = 0},
                              {.section = 1, .groups = 1, .first_lane = 0, .window = 0, .loss = true}},
                   .edges = {{0, 1, true}},
                   .lanes = 1,
                   .samples = {}};
    for (int i = 0; i < 4; ++i) single.samples.push_back({.id = i, .stages = {{2, 4, true}, {2, 4, true}}});
    // A lane has half of the work of 48 s; the second one waits for a forward and then for a backward.
    EXPECT_NEAR(lower_bound(schedule_test::in_stages(single, {2, 2})), 24 + 1 + 2, 1e-9);
}

}  // namespace
}  // namespace maestro::schedule
