// The lists of interleaved chunks. p ranks, v chunks, m micro-batches.
#include "schedule/execution/interleaving.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "unit/schedule/expect_plan.hpp"

namespace maestro::schedule {
namespace {

/// The order of Megatron-LM (megatron/core/pipeline_parallel/schedules.py), which takes multiples of the
/// ranks alone: a rank's k-th forward and backward by formula, and how many forwards come before the first
/// backward.
std::vector<ChunkTask> megatron_order(int p, int v, int rank, int m) {
    const auto task = [&](int k, Phase phase) {
        const int in_group = k % (p * v), chunk = in_group / p;
        return ChunkTask{phase == Phase::forward ? chunk : v - 1 - chunk, k / (p * v) * p + in_group % p,
                         phase};
    };
    const int total = m * v, warm_up = std::min(2 * (p - rank - 1) + (v - 1) * p, total);
    std::vector<ChunkTask> tasks;
    for (int k = 0; k < warm_up; ++k) tasks.push_back(task(k, Phase::forward));
    for (int k = 0; k < total - warm_up; ++k) {
        tasks.push_back(task(warm_up + k, Phase::forward));
        tasks.push_back(task(k, Phase::backward));
    }
    for (int k = total - warm_up; k < total; ++k) tasks.push_back(task(k, Phase::backward));
    return tasks;
}

TEST(Interleaving, CutsEvenRoundsThatAreNoShorterThanThePipeline) {
    EXPECT_THAT(interleaved_rounds(4, 11), testing::ElementsAre(6, 5));
    EXPECT_THAT(interleaved_rounds(4, 7), testing::ElementsAre(7));
    EXPECT_THAT(interleaved_rounds(4, 3), testing::ElementsAre(3));
    EXPECT_THAT(interleaved_rounds(4, 0), testing::IsEmpty());
    for (const int p : {1, 2, 3, 4, 8})
        for (int m = p; m < 8 * p; ++m) {
            const auto rounds = interleaved_rounds(p, m);
            EXPECT_EQ(std::accumulate(rounds.begin(), rounds.end(), 0), m);
            EXPECT_GE(rounds.back(), p);
            EXPECT_LE(rounds.front() - rounds.back(), 1);
            EXPECT_EQ(static_cast<int>(rounds.size()), m / p);
        }
}

TEST(Interleaving, IsTheOrderOfMegatronForMultiplesOfTheRanks) {
    for (const int p : {2, 3, 4, 8})
        for (const int v : {2, 3, 4})
            for (const int rounds : {1, 2, 5})
                for (int rank = 0; rank < p; ++rank)
                    ASSERT_EQ(interleaved_tasks(p, v, rank, rounds * p, true),
                              megatron_order(p, v, rank, rounds * p))
                        << p << " ranks, " << v << " chunks, rank " << rank << ", " << rounds << " rounds";
}

/// Each task once; forwards go down and backwards up the chunks, a backward in the last stage follows its
/// forward.
TEST(Interleaving, ListsEveryTaskOnceAndInAnOrderThatCanRun) {
    for (const int p : {1, 2, 4, 5})
        for (const int v : {1, 2, 3})
            for (int m = 0; m <= 4 * p; ++m)
                for (int rank = 0; rank < p; ++rank) {
                    SCOPED_TRACE(fmt::format("p {}, v {}, m {}, rank {}", p, v, m, rank));
                    const auto tasks = interleaved_tasks(p, v, rank, m, true);
                    std::map<std::pair<int, int>, std::size_t> forward, backward;
                    for (std::size_t k = 0; k < tasks.size(); ++k) {
                        auto& places = tasks[k].phase == Phase::forward ? forward : backward;
                        ASSERT_TRUE(
                            places.emplace(std::pair(tasks[k].chunk, tasks[k].micro_batch), k).second);
                    }
                    ASSERT_EQ(forward.size(), static_cast<std::size_t>(v * m));
                    ASSERT_EQ(backward.size(), static_cast<std::size_t>(v * m));
                    for (const auto& [key, at] : forward) {
                        const auto [chunk, i] = key;
                        ASSERT_LT(at, backward.at(key));
                        if (chunk + 1 < v) {
                            ASSERT_LT(at, forward.at({chunk + 1, i}));
                            ASSERT_LT(backward.at({chunk + 1, i}), backward.at(key));
                        } else if (rank == p - 1) {
                            ASSERT_EQ(backward.at(key), at + 1);
                        }
                    }
                    auto forwards = tasks;
                    std::erase_if(forwards, [](const ChunkTask& t) { return t.phase == Phase::backward; });
                    ASSERT_EQ(interleaved_tasks(p, v, rank, m, false), forwards);
                }
}

/// With one chunk too, where a stage runs a backward as soon as it can: 1F1B.
TEST(Interleaving, HasInFlightWhatTheClosedFormSays) {
    for (const int p : {1, 2, 4, 7})
        for (const int v : {1, 2, 3, 4})
            for (int m = 1; m <= 5 * p; ++m)
                for (int rank = 0; rank < p; ++rank) {
                    const int round = interleaved_rounds(p, m).front(), later = p - 1 - rank;
                    const int expected =
                        v == 1 ? std::min(m, later + 1) : std::min(v * m, 2 * later + (v - 1) * round + 1);
                    ASSERT_EQ(interleaved_in_flight(p, v, rank, m), expected)
                        << "p " << p << ", v " << v << ", m " << m << ", rank " << rank;
                }
}

}  // namespace
}  // namespace maestro::schedule
