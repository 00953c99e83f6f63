// What a step trains on and how fast: functions of (seed, step) alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/error.hpp"
#include "support/errors.hpp"
#include "train/coordinator/plan_source.hpp"
#include "train/step/optimizer.hpp"
#include "workload/data_order.hpp"

namespace maestro::train {
namespace {

std::vector<std::int64_t> batch(workload::DataOrder& order, std::int64_t step) {
    const auto ids = order.batch(step);
    return {ids.begin(), ids.end()};
}

TEST(DataOrder, HoldsEverySampleOnceAnEpochAndNoneTwiceAStep) {
    workload::DataOrder order(1, 103, 10);  // 10 steps an epoch, 3 samples left out
    std::set<std::int64_t> left_out;
    for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
        std::set<std::int64_t> seen;
        for (std::int64_t step = 10 * epoch; step < 10 * (epoch + 1); ++step)
            for (const std::int64_t id : batch(order, step)) {
                EXPECT_TRUE(id >= 0 && id < 103);
                EXPECT_TRUE(seen.insert(id).second) << "sample " << id << " twice in epoch " << epoch;
            }
        EXPECT_EQ(seen.size(), 100u);
        for (std::int64_t id = 0; id < 103; ++id)
            if (!seen.contains(id)) left_out.insert(id);
    }
    EXPECT_GT(left_out.size(), 20u) << "other samples are left out in other epochs";
}

TEST(DataOrder, DependsOnSeedAndStepAlone) {
    workload::DataOrder one(1, 50, 8), two(1, 50, 8), other(2, 50, 8);
    const auto late = batch(one, 1000);
    EXPECT_EQ(batch(two, 1000), late) << "whatever was asked before";
    batch(two, 3);
    EXPECT_EQ(batch(two, 1000), late);
    EXPECT_NE(batch(other, 1000), late);
    EXPECT_NE(batch(one, 0), batch(one, 6)) << "another epoch, another order";
    EXPECT_THROW(workload::DataOrder(1, 7, 8), Error);
}

TEST(LearningRate, RisesFallsAndStays) {
    const AdamSettings s{
        .learning_rate = 1, .final_learning_rate = 0.1, .warmup_steps = 10, .decay_steps = 110};
    EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(s, 10), 1);
    EXPECT_DOUBLE_EQ(learning_rate(s, 60), 0.55) << "half way down the cosine";
    EXPECT_DOUBLE_EQ(learning_rate(s, 35), 0.1 + 0.45 * (1 + std::cos(std::acos(-1.0) / 4)));
    EXPECT_DOUBLE_EQ(learning_rate(s, 110), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(s, 5000), 0.1);
    for (std::int64_t step = 10; step < 110; ++step)
        EXPECT_GT(learning_rate(s, step), learning_rate(s, step + 1));
    EXPECT_DOUBLE_EQ(learning_rate({.learning_rate = 1}, 77), 1) << "no decay: it stays";
    EXPECT_DOUBLE_EQ(learning_rate({.learning_rate = 1}, 1), 1) << "no warm-up";
}

/// Rates of a section are those of the optimizer times one factor.
TEST(LearningRate, OfASectionKeepsTheShape) {
    const AdamSettings s{.learning_rate = 1,
                         .final_learning_rate = 0.1,
                         .warmup_steps = 10,
                         .decay_steps = 110,
                         .weight_decay = 0.5};
    const AdamSettings quarter = with_rates(s, 0.25, std::nullopt), none = with_rates(s, 0, 0.0);
    for (const std::int64_t step : {1, 10, 35, 60, 110, 5000}) {
        EXPECT_DOUBLE_EQ(learning_rate(quarter, step), learning_rate(s, step) / 4) << step;
        EXPECT_EQ(learning_rate(none, step), 0) << step;
    }
    EXPECT_EQ(quarter.weight_decay, 0.5);
    EXPECT_EQ(none.weight_decay, 0);
    const AdamSettings only = with_rates({.learning_rate = 0}, 0.25, std::nullopt);
    EXPECT_EQ(learning_rate(only, 5), 0.25) << "no ratio to keep";
    EXPECT_EQ(learning_rate(with_rates(s, std::nullopt, std::nullopt), 35), learning_rate(s, 35));
}

schedule::StepPlan empty_plan(const schedule::Problem&, std::int64_t step, const std::stop_token&) {
    schedule::StepPlan plan;
    plan.step = step;
    return plan;
}

TEST(PlanSource, PlansAStepAheadAndPassesErrorsOn) {
    const auto wait = [](const std::function<bool()>& ready, const std::function<std::string()>&) {
        while (!ready()) std::this_thread::yield();
    };
    std::vector<std::int64_t> made;
    PlanSource source(
        [&](std::int64_t step) {
            if (step == 4) throw std::runtime_error("no plan");
            made.push_back(step);
            return schedule::Problem{};
        },
        empty_plan);
    EXPECT_EQ(source.take(1, wait).plan.step, 1);
    source.prepare(2);
    source.prepare(2);
    EXPECT_EQ(source.take(2, wait).plan.step, 2);
    source.prepare(3);
    EXPECT_EQ(source.take(3, wait).plan.step, 3);
    EXPECT_THAT(made, testing::ElementsAre(1, 2, 3)) << "each plan is made once";
    source.prepare(4);
    EXPECT_THROW(source.take(4, wait), std::runtime_error);
}

/// A search that would not end: the wait for its plan names it, and it ends before its source does.
TEST(PlanSource, NamesAnEndlessPlanAndEndsIt) {
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    {
        PlanSource source(
            [](std::int64_t) { return schedule::Problem{}; },
            [ended](const schedule::Problem& problem, std::int64_t step, const std::stop_token& unwanted) {
                while (!unwanted.stop_requested()) std::this_thread::yield();
                *ended = true;
                return empty_plan(problem, step, unwanted);
            });
        const auto give_up = [](const std::function<bool()>& ready,
                                const std::function<std::string()>& what) {
            EXPECT_FALSE(ready());
            throw Error(ExitCode::peer_lost, what());
        };
        const auto error = testing_support::error_of([&] { source.take(7, give_up); });
        EXPECT_EQ(error.code, ExitCode::peer_lost);
        EXPECT_THAT(error.what, testing::HasSubstr("the plan of step 7"));
        EXPECT_THAT(error.what, testing::HasSubstr("schedule.moves"));
    }
    EXPECT_TRUE(*ended);
}

}  // namespace
}  // namespace maestro::train
