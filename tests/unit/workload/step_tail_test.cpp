// The predicted end of a step and the arrival of its weights, compared with closed forms.
#include "workload/step_tail.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "graph/section_graph.hpp"

namespace maestro::workload {
namespace {

graph::Section section(const char* name, graph::Kind kind, int dp, const char* colocate_with = "") {
    graph::Section made;
    made.name = name;
    made.kind = kind;
    made.layout.dp = dp;
    made.colocate_with = colocate_with;
    return made;
}

/// Vision on the first lane, the replicas of language on the next ones or, colocated, on the same.
graph::SectionGraph vision_language(int language_dp, const char* colocate_with) {
    graph::Edge edge;
    edge.from_name = "vision";
    edge.to_name = "language";
    std::vector<graph::Refusal> refusals;
    auto graph = make_graph({section("vision", graph::Kind::encoder, 1),
                             section("language", graph::Kind::language, language_dp, colocate_with)},
                            {edge}, refusals);
    EXPECT_TRUE(refusals.empty());
    return graph;
}

/// A stage of `groups` equal groups, of which a backward finishes one after another at an even pace.
StepEnd even(int groups, double sum_s, double update_s, double gather_s) {
    StepEnd end;
    for (int g = 0; g < groups; ++g)
        end.push_back({.final_at = static_cast<double>(groups - g) / groups,
                       .needed_at = static_cast<double>(g) / groups,
                       .sum_s = sum_s / groups,
                       .update_s = update_s / groups,
                       .gather_s = gather_s / groups});
    return end;
}

/// With L groups, R seconds of sums, a last backward of b seconds that ends at T, and the norm's N: the last
/// group is summed after the backward, the others behind each other.
TEST(StepTail, SumsBesideTheLastBackward) {
    const auto graph = vision_language(2, "");
    constexpr double kEnd = 50, kLatency = 0.25, kNorm = 4 * kLatency;  // two levels of a tree, up and down
    for (const int groups : {1, 2, 5})
        for (const double sums : {0.5, 4.0, 20.0})
            for (const double backward : {1.0, 6.0}) {
                SCOPED_TRACE(testing::Message()
                             << groups << " groups, sums of " << sums << " s, " << backward);
                const StepTail tail =
                    step_tail(graph, {{}, even(groups, sums, 3, 0)},
                              {{{}}, {{kEnd - backward, kEnd}, {10, 11}}}, {1, kEnd, 11}, kLatency);
                const double exposed = std::max(sums / groups, sums - backward * (groups - 1) / groups);
                EXPECT_NEAR(tail.end_s, kEnd + exposed + kNorm + 3, 1e-12);
            }
}

/// The first forward, of f seconds from the step's start, waits max(G / L, G - f (L - 1) / L) for gathers of
/// G seconds that begin with it.
TEST(StepTail, GathersBesideTheFirstForward) {
    const auto graph = vision_language(2, "");
    for (const int groups : {1, 2, 5})
        for (const double gather_s : {0.5, 4.0, 20.0})
            for (const double forward : {1.0, 6.0}) {
                const StepEnd end = even(groups, 0, 0, gather_s);
                const StepTail tail = step_tail(graph, {{}, end}, {{{}}, {{0, 1}, {0, 1}}}, {1, 1, 1}, 0);
                EXPECT_NEAR(wait_for_weights(end, tail.weights_s[1], 0, forward),
                            std::max(gather_s / groups, gather_s - forward * (groups - 1) / groups), 1e-12);
                EXPECT_EQ(wait_for_weights(end, tail.weights_s[1], gather_s, forward), 0);
            }
}

TEST(StepTail, GathersBeginWithTheFirstUpdate) {
    // Updates of 1 s each, gathers of 2 s: the last of three is there at 1 + 3 x 2, 4 s after the last
    // update.
    const StepTail tail =
        step_tail(vision_language(2, ""), {{}, even(3, 0, 3, 6)}, {{{}}, {{0, 1}, {0, 1}}}, {1, 1, 1}, 0);
    EXPECT_DOUBLE_EQ(tail.end_s, 1 + 3);
    EXPECT_DOUBLE_EQ(tail.weights_s[1].front(), 0);
    EXPECT_DOUBLE_EQ(tail.weights_s[1].back(), 4);
}

TEST(StepTail, AReplicaWithoutTasksKeepsNobodyWaiting) {
    const StepTail tail =
        step_tail(vision_language(2, ""), {{}, even(1, 5, 0, 0)}, {{{}}, {{}, {2, 3}}}, {1, 0, 3}, 0);
    EXPECT_DOUBLE_EQ(tail.end_s, 3 + 5);
}

TEST(StepTail, ColocatedStagesShareANetwork) {
    // Both are final at 1; then 10 s of sums of the one and 0.5 of the other, updates of 5 and 3, and
    // gathers.
    const StepTail tail = step_tail(vision_language(1, "vision"), {even(1, 10, 5, 7), even(1, 0.5, 3, 7)},
                                    {{{0, 1}}, {{0, 1}}}, {1}, 0.25);
    EXPECT_DOUBLE_EQ(tail.end_s, 1 + 10 + 0.5 + 5 + 3);
    EXPECT_DOUBLE_EQ(tail.weights_s[0][0], 5 + 7 - 8);
    EXPECT_DOUBLE_EQ(tail.weights_s[1][0], 5 + 7 + 7 - 8);
}

TEST(StepTail, ComputesTheNormOfTheLastGroupAfterItsSum) {
    StepEnd end = even(2, 4, 0, 0);
    for (GroupTimes& group : end) group.after_sum_s = 0.5;  // that of the first is hidden
    const StepTail tail = step_tail(vision_language(1, ""), {{}, end}, {{{}}, {{0, 0}}}, {0, 0}, 0);
    EXPECT_DOUBLE_EQ(tail.end_s, 4 + 0.5);
}

/// A pipeline of two stages. The last one's embedding is final at 2, but its copy on the first stage at 9.
TEST(StepTail, ATiedEmbeddingWaitsForItsOtherStageAndLetsOthersPass) {
    graph::Section pipeline = section("language", graph::Kind::language, 1);
    pipeline.layout.pp = 2;
    std::vector<graph::Refusal> refusals;
    const auto graph = make_graph({pipeline}, {}, refusals);
    ASSERT_TRUE(refusals.empty());
    StepEnd last = even(2, 2, 0, 0);  // the embedding is the head, which backward finishes first
    last[1].tied = true;
    last[1].sum_s = 3;
    StepEnd first = even(1, 1, 0, 0);
    first[0].tied = true;
    const auto end_s = [&](double other_sum_s) {
        last[0].sum_s = other_sum_s;
        return step_tail(graph, {first, last}, {{{8, 9}}, {{2, 2}}}, {9, 2}, 0).end_s;
    };
    EXPECT_DOUBLE_EQ(end_s(1), 9 + 3);
    EXPECT_DOUBLE_EQ(end_s(7), 9 + 3) << "the other group is summed from 2 to 9";
    EXPECT_DOUBLE_EQ(end_s(8), 10 + 3);
}

}  // namespace
}  // namespace maestro::workload
