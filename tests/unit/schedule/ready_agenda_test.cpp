#include "schedule/execution/ready_agenda.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace maestro::schedule {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

Task forward(int section, int micro_batch, double takes_s = 0, double float_s = kNoLimit) {
    return {section, micro_batch, Phase::forward, takes_s, float_s};
}
Task backward(int section, int micro_batch) {
    return {section, micro_batch, Phase::backward};
}

/// Starts of a agenda whose tasks at the places of `ready[k]` can start when it is asked for the k-th time;
/// -1 where it waits.
std::vector<int> starts(const std::vector<Task>& tasks, std::vector<LaneStage> stages,
                        const std::vector<std::set<std::size_t>>& ready) {
    ReadyAgenda agenda(tasks, std::move(stages));
    std::vector<int> places;
    for (const auto& now : ready) {
        const auto next = agenda.next([&](std::size_t place) { return now.contains(place); });
        places.push_back(next ? static_cast<int>(*next) : -1);
        if (next) agenda.start(*next);
    }
    return places;
}

TEST(ReadyAgenda, ComparesWithAllThatWait) {
    // A can wait for 3 s, B for 0.5 s, C for ever; B may overtake A (2 s), C (4 s) neither, D (0.2 s) all.
    const std::vector<Task> tasks{forward(0, 0, 1, 3), backward(0, 0), forward(0, 1, 2, 0.5), backward(0, 1),
                                  forward(0, 2, 4),    backward(0, 2), forward(0, 3, 0.2),    backward(0, 3)};
    EXPECT_THAT(starts(tasks, {{0, false}}, {{4}, {4, 6}, {}, {2, 4}, {}, {4}, {0, 4}, {}, {4}}),
                testing::ElementsAre(-1, 6, 7, 2, 3, -1, 0, 1, 4));
}

TEST(ReadyAgenda, KeepsTheOrderOfForwardsThatAreSentOn) {
    // Two upstream sections: each keeps its order, backwards and the other section do not wait for it.
    const std::vector<Task> tasks{forward(0, 0), forward(0, 1), forward(1, 0), backward(0, 0), forward(1, 1)};
    EXPECT_THAT(starts(tasks, {{0, true}, {1, true}}, {{1}, {1, 4}, {1, 2}, {1, 4}, {3}, {0, 1}, {1}}),
                testing::ElementsAre(-1, -1, 2, 4, 3, 0, 1));
}

TEST(ReadyAgenda, RunsABackwardOfALossRightAfterItsForward) {
    const std::vector<Task> tasks{forward(0, 0), forward(1, 0, 1, 1), backward(0, 0), backward(1, 0)};
    EXPECT_THAT(starts(tasks, {{0, true}, {1, false}}, {{1}, {0, 2}, {0, 2}, {2}}),
                testing::ElementsAre(1, 3, 0, 2));
}

TEST(ReadyAgenda, KeepsTheOrderOfChunksButForTheLoss) {
    // Stages 0 and 1 are chunks of section 0; stage 2 is another section.
    const std::vector<Task> tasks{forward(0, 0),  forward(1, 0, 2, 1), backward(1, 0), forward(1, 1, 1, 0),
                                  backward(1, 1), backward(0, 0),      forward(2, 0)};
    const std::vector<LaneStage> stages{{0, true}, {0, false}, {1, true}};
    // While micro-batch 0 of the loss is late, another of the loss may overtake it, a chunk above may not.
    EXPECT_THAT(starts(tasks, stages, {{0}, {5, 6}, {5}, {3, 5}, {4, 5}, {5}, {1, 5}, {2, 5}, {5}}),
                testing::ElementsAre(0, 6, -1, 3, 4, -1, 1, 2, 5));
}

}  // namespace
}  // namespace maestro::schedule
