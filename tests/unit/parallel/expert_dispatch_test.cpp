#include "parallel/expert_dispatch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace maestro::parallel {
namespace {

using testing::ElementsAre;

TEST(ExpertOrder, SortsChoicesByExpertAndThenByRow) {
    // Rows 0 to 3 with two choices each, of experts 0 to 4; this rank has experts 1 to 3.
    const std::vector<std::int32_t> choice{3, 1, 0, 3, 4, 0, 1, 3};
    const ExpertOrder order = order_by_expert(choice, 2, {1, 4});
    EXPECT_THAT(order.begin, ElementsAre(0, 2, 2, 5));
    EXPECT_THAT(order.row, ElementsAre(0, 3, 0, 1, 3));
    EXPECT_THAT(order.slot, ElementsAre(1, 6, 0, 3, 7));
    EXPECT_THAT(order.position, ElementsAre(2, 0, -1, 3, -1, -1, 1, 4));
}

TEST(ExpertOrder, OfNoRowsIsEmpty) {
    const ExpertOrder order = order_by_expert({}, 2, {0, 3});
    EXPECT_THAT(order.begin, ElementsAre(0, 0, 0, 0));
    EXPECT_TRUE(order.row.empty() && order.position.empty());
}

TEST(ExpertGroup, ShareOfRowsIsThatOfTheHypergeometricDistribution) {
    // Of 8 experts, 2 are on a rank, and 3 are chosen: 1 - C(6, 3) / C(8, 3) = 1 - 20 / 56.
    const ExpertGroup group{{4, 1}, 0, 8, 3};
    EXPECT_NEAR(group.share_of_rows(), 1 - 20.0 / 56, 1e-15);
    EXPECT_EQ((ExpertGroup{{1, 2}, 0, 8, 3}.share_of_rows()), 1);
    EXPECT_EQ((ExpertGroup{{2, 1}, 0, 4, 3}.share_of_rows()), 1) << "each row has a choice on each rank";
}

/// Choices of the rows of all ranks.
struct Routing {
    ExpertGroup group;
    std::vector<std::int64_t> rows;
    std::vector<std::int32_t> choice;
};

Routing random_routing(std::mt19937& random, bool one_rank_only) {
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)) + 1; };
    Routing r;
    const int ep = up_to(4), each = up_to(4);
    r.group = {{ep, up_to(2)}, 0, ep * each, up_to(std::min(ep * each, 4))};
    for (int rank = 0; rank < r.group.degrees.ranks(); ++rank) r.rows.push_back(up_to(12) - 1);
    std::vector<std::int32_t> experts(static_cast<std::size_t>(r.group.experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (std::int64_t row = std::accumulate(r.rows.begin(), r.rows.end(), std::int64_t{0}); row > 0; --row) {
        if (!one_rank_only) std::shuffle(experts.begin(), experts.end(), random);
        r.choice.insert(r.choice.end(), experts.begin(), experts.begin() + r.group.choices);
    }
    return r;
}

/// Plays all ranks: what one sends to another in a round is what the other one expects from it, in this
/// order, and at the end each rank has received each row with a choice among its experts exactly once.
void check_rounds(const Routing& r, const ExpertLimits& limits) {
    const auto ranks = static_cast<std::size_t>(r.group.degrees.ranks());
    const auto k = static_cast<std::size_t>(r.group.choices);
    std::vector<std::vector<ExpertRound>> of_rank;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        ExpertGroup group = r.group;
        group.rank = static_cast<int>(rank);
        of_rank.push_back(plan_expert_rounds(group, r.rows, r.choice, limits));
        ASSERT_EQ(of_rank[rank].size(), of_rank[0].size()) << "all ranks have the same number of rounds";
        ASSERT_GE(of_rank[rank].size(), 1u);
    }
    std::vector<std::int64_t> first{0};
    for (const std::int64_t rows : r.rows) first.push_back(first.back() + rows);
    std::vector<std::multiset<std::int32_t>> received(ranks);
    for (std::size_t round = 0; round < of_rank[0].size(); ++round)
        for (std::size_t to = 0; to < ranks; ++to) {
            const ExpertRound& receiver = of_rank[to][round];
            std::size_t at = 0;
            for (std::size_t from = 0; from < ranks; ++from) {
                const ExpertRound& sender = of_rank[from][round];
                ASSERT_EQ(sender.send_rows[to], receiver.receive_rows[from]);
                const auto begin =
                    std::accumulate(sender.send_rows.begin(), sender.send_rows.begin() + to, std::int64_t{0});
                for (std::int64_t i = begin; i < begin + sender.send_rows[to]; ++i) {
                    const std::int32_t row = sender.sent[static_cast<std::size_t>(i)];
                    ASSERT_EQ(receiver.received.at(at++), first[from] + row);
                    ASSERT_EQ(sender.place[static_cast<std::size_t>(row) * ranks + to], i);
                }
                ASSERT_EQ(static_cast<std::size_t>(std::count_if(sender.place.begin(), sender.place.end(),
                                                                 [](std::int32_t p) { return p >= 0; })),
                          sender.sent.size());
            }
            ASSERT_EQ(at, receiver.received.size());
            ASSERT_LE(static_cast<std::int64_t>(at), limits.rows);
            ExpertGroup group = r.group;
            const Range experts = group.experts_of(static_cast<int>(to));
            std::int64_t choices = 0;
            for (const std::int32_t row : receiver.received)
                for (std::size_t j = 0; j < k; ++j) {
                    const std::int32_t expert = r.choice[static_cast<std::size_t>(row) * k + j];
                    choices += expert >= experts.begin && expert < experts.end;
                }
            ASSERT_LE(choices, limits.choices);
            received[to].insert(receiver.received.begin(), receiver.received.end());
        }
    for (std::size_t to = 0; to < ranks; ++to) {
        const Range experts = r.group.experts_of(static_cast<int>(to));
        std::multiset<std::int32_t> expected;
        for (std::size_t row = 0; row * k < r.choice.size(); ++row)
            if (std::any_of(r.choice.begin() + row * k, r.choice.begin() + (row + 1) * k,
                            [&](std::int32_t e) { return e >= experts.begin && e < experts.end; }))
                expected.insert(static_cast<std::int32_t>(row));
        ASSERT_EQ(received[to], expected);
    }
}

TEST(ExpertRounds, DeliverEachRowOnceToEachRankOfItsExperts) {
    std::mt19937 random(5);
    std::size_t several = 0;
    for (int i = 0; i < 300; ++i) {
        const Routing r = random_routing(random, i % 5 == 0);
        SCOPED_TRACE(i);
        const std::int64_t all = std::accumulate(r.rows.begin(), r.rows.end(), std::int64_t{0});
        check_rounds(r, expert_limits(r.group, all));
        const ExpertLimits small{3, std::max(5, r.group.choices)};
        check_rounds(r, small);
        several += plan_expert_rounds(r.group, r.rows, r.choice, small).size() > 1;
    }
    EXPECT_GT(several, 100u);
}

TEST(ExpertRounds, AreOneWhereChoicesAreSpreadAndSeveralWhereAllRowsChooseOneExpert) {
    const ExpertGroup group{{4, 1}, 0, 16, 2};
    std::mt19937 random(1);
    const std::vector<std::int64_t> rows(4, 1000);
    std::vector<std::int32_t> spread, same;
    for (int row = 0; row < 4000; ++row) {
        const auto expert = static_cast<std::int32_t>(random() % 16);
        spread.push_back(expert);
        spread.push_back((expert + 1 + static_cast<std::int32_t>(random() % 15)) % 16);
        same.push_back(5);
        same.push_back(6);
    }
    const ExpertLimits limits = expert_limits(group, 4000);
    EXPECT_LT(limits.rows, 2500) << "not the worst case of all rows";
    EXPECT_EQ(plan_expert_rounds(group, rows, spread, limits).size(), 1u);
    EXPECT_EQ(plan_expert_rounds(group, rows, same, limits).size(), 3u) << "8000 choices, 2679 at a time";
}

TEST(ExpertLimits, HoldTheChoicesOfOneRow) {
    for (const std::int64_t rows : {0, 1, 2}) {
        const ExpertLimits limits = expert_limits({{2, 1}, 0, 16, 8}, rows);
        EXPECT_GE(limits.rows, 1);
        EXPECT_GE(limits.choices, 8);
    }
}

}  // namespace
}  // namespace maestro::parallel
