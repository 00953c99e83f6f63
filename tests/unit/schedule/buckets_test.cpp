// Length bucketing for lanes with several parts, against closed forms and every possible pairing.
#include "schedule/policies/buckets.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "unit/schedule/plan_check.hpp"

namespace maestro::schedule {
namespace {

/// An encoder with one lane for each of `sub_problems` sub-problems, and `groups` language lanes of `parts`
/// parts each. Log-normal costs of sigma 0.8, a third of the samples with pictures. The work of an encoder's
/// lane is about two thirds of that of a language lane.
Problem with_parts(int encoder_parts, int groups, int parts, int samples, int sub_problems = 1) {
    const Random random(static_cast<std::uint64_t>(samples + parts), "parts");
    Problem problem{.stages = {{.groups = sub_problems,
                                .parts = encoder_parts,
                                .micro_batch = encoder_parts,
                                .window = 0},
                               {.section = 1,
                                .groups = groups,
                                .first_lane = sub_problems,
                                .parts = parts,
                                .micro_batch = parts,
                                .window = 0,
                                .loss = true}},
                    .edges = {{0, 1, true}},
                    .lanes = sub_problems + groups,
                    .samples = {}};
    for (int i = 0; i < samples; ++i) {
        const auto at = static_cast<std::uint64_t>(2 * i);
        const double language = std::exp(0.8 * random.normal(at)) / 3,
                     vision = 2.0 * sub_problems / (groups * parts) * std::exp(0.8 * random.normal(at + 1));
        const bool picture = i % 3 == 0;
        problem.samples.push_back(
            {.id = i,
             .stages = {{picture ? vision / 3 : 0, picture ? 2 * vision / 3 : 0, picture},
                        {language, 2 * language, true}}});
    }
    return problem;
}

double longest_in(const Instance& instance, int stage, std::span<const int> bucket) {
    double longest = 0;
    for (const int i : bucket) longest = std::max(longest, instance.total(stage, i));
    return longest;
}

TEST(Buckets, HaveEverySampleOnceAndAlikeOnesTogether) {
    for (const Kinds kinds : {Kinds::apart, Kinds::together}) {
        const Instance instance = whole(with_parts(1, 2, 4, 50));
        const MicroBatches buckets = make_buckets(instance, kinds).anchor;
        std::vector<int> seen;
        // The samples of a bucket are consecutive in the order of costs, so that the next one has shorter
        // ones.
        double before[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
        for (std::size_t b = 0; b < buckets.size(); ++b) {
            const auto bucket = buckets.samples(b);
            const int kind = kinds == Kinds::apart && instance.other_work[bucket.front()] ? 1 : 0;
            ASSERT_LE(bucket.size(), 4U);
            ASSERT_LE(longest_in(instance, 1, bucket), before[kind]);
            for (const int i : bucket) {
                seen.push_back(i);
                before[kind] = std::min(before[kind], instance.total(1, i));
                if (kinds == Kinds::apart) {
                    ASSERT_EQ(instance.other_work[i], kind);
                }
            }
        }
        std::sort(seen.begin(), seen.end());
        std::vector<int> all(50);
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all);
        // 17 samples with pictures and 33 without, or all 50: in as few buckets of four as possible.
        EXPECT_EQ(buckets.size(), kinds == Kinds::apart ? 5U + 9U : 13U);
    }
}

TEST(Buckets, OfTheAnchorDivideThoseOfASectionWithMoreParts) {
    const Instance instance = whole(with_parts(8, 2, 4, 96));
    const auto [widest, anchor] = make_buckets(instance, Kinds::apart);
    for (std::size_t b = 0; b < anchor.size(); ++b) {
        const auto bucket = anchor.samples(b);
        ASSERT_LE(bucket.size(), 4U);
        for (const int i : bucket)
            if (instance.other_work[i]) {
                ASSERT_EQ(widest.item_of(i), widest.item_of(bucket.front()));
            }
    }
    // 32 samples with pictures for the eight parts of the encoder.
    const auto eights = [&] {
        int count = 0;
        for (std::size_t b = 0; b < widest.size(); ++b) count += widest.samples(b).size() == 8 ? 1 : 0;
        return count;
    };
    EXPECT_EQ(eights(), 4);
}

TEST(Buckets, AreAsLongAsIfAllPartsHadTheLongestSample) {
    const Instance instance = whole(with_parts(1, 1, 4, 32));
    const MicroBatches buckets = make_buckets(instance, Kinds::together).anchor;
    const Instance bundled = bundle(instance, buckets);
    ASSERT_EQ(bundled.samples, 8);
    for (int b = 0; b < bundled.samples; ++b) {
        const auto bucket = buckets.samples(static_cast<std::size_t>(b));
        double vision = 0;
        for (const int i : bucket) vision += instance.total(0, i);
        EXPECT_NEAR(bundled.total(0, b), vision, 1e-12);  // one part takes all samples
        EXPECT_NEAR(bundled.total(1, b), 4 * longest_in(instance, 1, bucket), 1e-12);
        EXPECT_EQ(bundled.active[bundled.at(0, b)] != 0, vision > 0);
    }
}

/// Returns the shortest total time of micro-batches of two samples, over all ways to pair them.
double best_pairing(std::vector<double> jobs) {
    if (jobs.empty()) return 0;
    const double first = jobs.back();
    jobs.pop_back();
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t other = 0; other < jobs.size(); ++other) {
        std::vector<double> rest = jobs;
        rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(other));
        best = std::min(best, std::max(first, jobs[other]) + best_pairing(std::move(rest)));
    }
    return best;
}

TEST(Parts, TakeTheShortestTimeOfAllPairings) {
    for (const int samples : {2, 4, 6, 8}) {
        Problem problem = with_parts(1, 1, 2, samples);
        for (SampleCost& sample : problem.samples) sample.stages.front() = {};
        std::vector<double> jobs;
        for (const SampleCost& sample : problem.samples)
            jobs.push_back(sample.stages[1].forward_s + sample.stages[1].backward_s);
        const double best = best_pairing(jobs);
        EXPECT_NEAR(lower_bound(problem), best, 1e-9) << samples << " samples";
        EXPECT_NEAR(make_plan("wavefront", problem, 1).makespan_s, best, 1e-9) << samples << " samples";
    }
}

/// In data order the parts of a lane wait for each other for half of the time. Lanes of one sub-problem, and
/// of sub-problems among which samples are distributed first.
TEST(Parts, EndTogetherUnderWavefront) {
    for (const int sub_problems : {1, 4})
        for (const int parts : {2, 8}) {
            SCOPED_TRACE(fmt::format("{} sub-problems, {} parts", sub_problems, parts));
            const Problem problem = with_parts(1, 4, parts, 4 * 24 * parts, sub_problems);
            const StepPlan plan = make_plan("wavefront", problem, 1);
            EXPECT_THAT(schedule_test::check_plan(problem, plan), testing::IsEmpty());
            EXPECT_LE(plan.makespan_s, 1.03 * plan.lower_bound_s);
            EXPECT_GE(make_plan("fifo", problem, 1).makespan_s, 1.3 * plan.lower_bound_s);
        }
}

/// The encoder has parts, four to each of its lanes, and shares the lanes of the language model.
TEST(Parts, OfAnEncoderOnTheSameLanesEndTogether) {
    Problem problem = with_parts(4, 4, 1, 200, 4);
    problem.stages[1].first_lane = 0;
    problem.lanes = 4;
    const StepPlan plan = make_plan("wavefront", problem, 1);
    EXPECT_THAT(schedule_test::check_plan(problem, plan), testing::IsEmpty());
    EXPECT_LE(plan.makespan_s, 1.02 * plan.lower_bound_s);
}

/// A long text occupies a lane of four parts while an encoder works on pictures, one after another. The three
/// parts that wait for pictures do most of the text's work meanwhile.
TEST(Parts, WorkInCommonBeforeTheirFirstSample) {
    Problem problem = with_parts(1, 1, 4, 5);
    for (int i = 0; i < 5; ++i)
        problem.samples[i].stages =
            i == 0 ? std::vector<TaskCost>{{}, {1, 2, true, 0, 0.9}}
                   : std::vector<TaskCost>{{0.24, 0, true}, {0.001, 0.002, true, 0, 0.9}};
    const StepPlan plan = make_plan("wavefront", problem, 1);
    const double text = 3 * (0.1 + 0.9 / 4), pictures = 0.003 * (0.1 + 4 * 0.9 / 4);
    EXPECT_NEAR(plan.makespan_s, text + pictures, 1e-9);
    EXPECT_LE(lower_bound(problem), plan.makespan_s + 1e-9);
}

}  // namespace
}  // namespace maestro::schedule
