#include "parallel/expert_dispatch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

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

enum class Placement { one_node, several_nodes };

Routing random_routing(std::mt19937& random, bool one_rank_only, Placement placement) {
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)) + 1; };
    Routing r;
    const int ep = up_to(4), each = up_to(4);
    r.group = {{ep, up_to(2)}, 0, ep * each, up_to(std::min(ep * each, 4))};
    const int ranks = r.group.degrees.ranks();
    std::vector<int> node_of;
    for (int rank = 0; rank < ranks; ++rank) {
        r.rows.push_back(up_to(12) - 1);
        node_of.push_back(placement == Placement::one_node ? 0 : up_to(3));
    }
    r.group.nodes = collective::Nodes(node_of);
    std::vector<std::int32_t> experts(static_cast<std::size_t>(r.group.experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (std::int64_t row = std::accumulate(r.rows.begin(), r.rows.end(), std::int64_t{0}); row > 0; --row) {
        if (!one_rank_only) std::shuffle(experts.begin(), experts.end(), random);
        r.choice.insert(r.choice.end(), experts.begin(), experts.begin() + r.group.choices);
    }
    return r;
}

/// Numbers that ranks hold, by rank.
using ByRank = std::vector<std::vector<double>>;

/// Plays the exchange of one hop: numbers[r] are those of rank r before it.
ByRank play(const std::vector<const ExpertHop*>& hops, const ByRank& numbers) {
    ByRank received(hops.size());
    for (std::size_t to = 0; to < hops.size(); ++to)
        for (std::size_t from = 0; from < hops.size(); ++from) {
            const ExpertHop& hop = *hops[from];
            EXPECT_EQ(hop.send_rows[to], hops[to]->receive_rows[from]);
            const auto begin =
                std::accumulate(hop.send_rows.begin(), hop.send_rows.begin() + to, std::int64_t{0});
            for (std::int64_t i = begin; i < begin + hop.send_rows[to]; ++i)
                received[to].push_back(numbers[from].at(static_cast<std::size_t>(hop.sent.at(i))));
        }
    return received;
}

/// Plays the way back: results[r] are those of what rank r has received. Adds them to sums. A row has been
/// sent to at most `most` ranks.
void play_back(const std::vector<const ExpertHop*>& hops, std::size_t most, const ByRank& results,
               ByRank& sums) {
    const std::size_t ranks = hops.size();
    ByRank back(ranks);
    for (std::size_t to = 0; to < ranks; ++to)
        for (std::size_t from = 0; from < ranks; ++from) {
            const std::vector<std::int64_t>& rows = hops[from]->receive_rows;
            const auto begin = std::accumulate(rows.begin(), rows.begin() + to, std::int64_t{0});
            for (std::int64_t i = begin; i < begin + rows[to]; ++i)
                back[to].push_back(results[from].at(static_cast<std::size_t>(i)));
        }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(hops[rank]->place.size(), sums[rank].size() * most);
        for (std::size_t i = 0; i < hops[rank]->place.size(); ++i)
            if (const std::int32_t at = hops[rank]->place[i]; at >= 0)
                sums[rank][i / most] += back[rank].at(static_cast<std::size_t>(at));
    }
}

/// What rank `rank` makes of a row. Sums of these are exact.
double result_of(double row, std::size_t rank) {
    return (row + 1) * std::exp2(4 * static_cast<double>(rank));
}

/// Plays all ranks, forth and back. Each rank receives each row with a choice among its experts exactly once,
/// and nothing else; each row crosses to another node at most once; and what comes back to it is the sum over
/// its receivers.
void check_rounds(const Routing& r, const ExpertLimits& limits) {
    const auto ranks = static_cast<std::size_t>(r.group.degrees.ranks());
    const auto k = static_cast<std::size_t>(r.group.choices);
    const auto most = static_cast<std::size_t>(r.group.most_receivers());
    const collective::Nodes& nodes = r.group.nodes;
    const bool by_nodes = r.group.by_nodes();
    std::vector<std::vector<ExpertRound>> of_rank;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        ExpertGroup group = r.group;
        group.rank = static_cast<int>(rank);
        of_rank.push_back(plan_expert_rounds(group, r.rows, r.choice, limits));
        ASSERT_EQ(of_rank[rank].size(), of_rank[0].size()) << "all ranks have the same number of rounds";
        ASSERT_GE(of_rank[rank].size(), 1u);
    }
    ByRank rows(ranks), sums(ranks), received(ranks);
    double number = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::int64_t i = 0; i < r.rows[rank]; ++i) rows[rank].push_back(number++);
        sums[rank].assign(rows[rank].size(), 0.0);
    }
    const auto has_choice = [&](double row, std::size_t rank) {
        const Range experts = r.group.experts_of(static_cast<int>(rank));
        const auto begin =
            r.choice.begin() + static_cast<std::ptrdiff_t>(row) * static_cast<std::ptrdiff_t>(k);
        return std::count_if(begin, begin + static_cast<std::ptrdiff_t>(k),
                             [&](std::int32_t e) { return e >= experts.begin && e < experts.end; });
    };
    std::map<std::pair<double, int>, int> crossings;  // of a row to a node
    for (std::size_t number_of_round = 0; number_of_round < of_rank[0].size(); ++number_of_round) {
        std::vector<const ExpertRound*> round;
        std::vector<const ExpertHop*> first, second;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            round.push_back(&of_rank[rank][number_of_round]);
            first.push_back(&round.back()->first);
            ASSERT_EQ(round.back()->second.has_value(), by_nodes);
            if (by_nodes) second.push_back(&*round.back()->second);
        }
        const ByRank landed = play(first, rows);
        ByRank at_experts = landed;
        if (by_nodes) {
            const ByRank forwarded = play(second, landed);
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                at_experts[rank].clear();
                for (const std::int32_t i : round[rank]->kept) at_experts[rank].push_back(landed[rank].at(i));
                at_experts[rank].insert(at_experts[rank].end(), forwarded[rank].begin(),
                                        forwarded[rank].end());
            }
        }
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            ASSERT_EQ(at_experts[rank],
                      std::vector<double>(round[rank]->received.begin(), round[rank]->received.end()));
            ASSERT_EQ(round[rank]->rows, std::ssize(at_experts[rank]));
            std::vector<std::int32_t> choices_of_rows;
            for (const std::int32_t row : round[rank]->received) {
                const auto begin = r.choice.begin() + row * static_cast<std::ptrdiff_t>(k);
                choices_of_rows.insert(choices_of_rows.end(), begin, begin + static_cast<std::ptrdiff_t>(k));
            }
            ASSERT_EQ(round[rank]->choices, choices_of_rows);
            ASSERT_LE(std::ssize(at_experts[rank]), limits.rows);
            std::int64_t choices = 0, crossed = 0;
            for (const double row : at_experts[rank]) choices += has_choice(row, rank);
            ASSERT_LE(choices, limits.choices);
            received[rank].insert(received[rank].end(), at_experts[rank].begin(), at_experts[rank].end());
            const int node = nodes.of(static_cast<int>(rank));
            std::size_t at = 0;
            for (std::size_t from = 0; from < ranks; ++from)
                for (std::int64_t i = 0; i < first[rank]->receive_rows[from]; ++i, ++at) {
                    if (nodes.of(static_cast<int>(from)) == node) continue;
                    ++crossed;
                    ++crossings[{landed[rank].at(at), node}];
                }
            ASSERT_LE(crossed, limits.crossing);
            if (!by_nodes) continue;
            ASSERT_LE(second[rank]->rows_sent(), limits.forwarded);
            for (std::size_t to = 0; to < ranks; ++to)
                ASSERT_TRUE(second[rank]->send_rows[to] == 0 || nodes.of(static_cast<int>(to)) == node);
        }
        // Back again.
        ByRank results(ranks), landed_results(ranks);
        for (std::size_t rank = 0; rank < ranks; ++rank)
            for (const double row : at_experts[rank]) results[rank].push_back(result_of(row, rank));
        if (by_nodes) {
            ByRank of_second(ranks);
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                const auto kept = std::ssize(round[rank]->kept);
                ASSERT_EQ(round[rank]->kept_place.size(), landed[rank].size());
                for (const std::int32_t at : round[rank]->kept_place)
                    landed_results[rank].push_back(at < 0 ? 0 : results[rank].at(at));
                of_second[rank].assign(results[rank].begin() + kept, results[rank].end());
            }
            play_back(second, most, of_second, landed_results);
            results = landed_results;
        }
        play_back(first, most, results, sums);
    }
    for (const auto& [row_and_node, times] : crossings)
        ASSERT_TRUE(times == 1 || !by_nodes) << row_and_node.first;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        std::vector<double> expected;
        for (const std::vector<double>& of_source : rows)
            for (const double row : of_source)
                if (has_choice(row, rank) > 0) expected.push_back(row);
        std::sort(received[rank].begin(), received[rank].end());
        ASSERT_EQ(received[rank], expected);
        for (std::size_t i = 0; i < rows[rank].size(); ++i) {
            double sum = 0;
            for (std::size_t to = 0; to < ranks; ++to)
                if (has_choice(rows[rank][i], to) > 0) sum += result_of(rows[rank][i], to);
            ASSERT_EQ(sums[rank][i], sum);
        }
    }
}

/// Of the arrays of a round.
std::int64_t bytes_of(const ExpertRound& round) {
    const auto numbers = [](const auto&... arrays) { return (std::ssize(arrays) + ...); };
    const auto of_hop = [&](const ExpertHop& hop) {
        return 4 * numbers(hop.sent, hop.place) + 8 * numbers(hop.send_rows, hop.receive_rows);
    };
    return of_hop(round.first) + (round.second ? of_hop(*round.second) : 0) +
           4 * numbers(round.kept, round.kept_place, round.received, round.choices);
}

void check_random_rounds(Placement placement) {
    std::mt19937 random(5);
    std::size_t several = 0, by_nodes = 0;
    for (int i = 0; i < 300; ++i) {
        const Routing r = random_routing(random, i % 5 == 0, placement);
        SCOPED_TRACE(i);
        const ExpertLimits limits = expert_limits(r.group, r.rows);
        check_rounds(r, limits);
        for (const ExpertRound& round : plan_expert_rounds(r.group, r.rows, r.choice, limits))
            ASSERT_LE(bytes_of(round), expert_host_bytes(r.group, r.rows).round);
        const ExpertLimits small{3, std::max(5, r.group.choices), 4, 7};
        check_rounds(r, small);
        several += plan_expert_rounds(r.group, r.rows, r.choice, small).size() > 1;
        by_nodes += r.group.by_nodes();
    }
    EXPECT_GT(several, 100u);
    EXPECT_EQ(by_nodes > 0, placement == Placement::several_nodes);
    EXPECT_TRUE(by_nodes == 0 || by_nodes > 100) << by_nodes;
}

TEST(ExpertRounds, DeliverEachRowOnceToEachRankOfItsExperts) {
    check_random_rounds(Placement::one_node);
}
TEST(ExpertRounds, CrossTheBorderOfANodeOnceForEachRow) {
    check_random_rounds(Placement::several_nodes);
}

/// Eight ranks on two nodes of three and five, with 32 experts of which four are chosen.
void check_expected_rows(ExpertDegrees degrees) {
    ExpertGroup group{degrees, 0, 32, 4, collective::Nodes({0, 0, 0, 1, 1, 1, 1, 1})};
    const std::vector<std::int64_t> rows{900, 1100, 0, 1000, 1000, 1000, 700, 1300};
    std::mt19937 random(2);
    std::vector<std::int32_t> experts(32), choice;
    std::iota(experts.begin(), experts.end(), 0);
    for (int row = 0; row < 7000; ++row) {
        std::shuffle(experts.begin(), experts.end(), random);
        choice.insert(choice.end(), experts.begin(), experts.begin() + 4);
    }
    for (group.rank = 0; group.rank < 8; ++group.rank) {
        SCOPED_TRACE(group.rank);
        const std::vector<ExpertRound> real =
            plan_expert_rounds(group, rows, choice, expert_limits(group, rows));
        ASSERT_EQ(real.size(), 1u);
        const ExpertRound expected = expected_expert_round(group, rows);
        const auto expect_near = [](std::int64_t found, std::int64_t mean) {
            EXPECT_NEAR(static_cast<double>(found), static_cast<double>(mean), 4 * std::sqrt(mean) + 1);
        };
        expect_near(real[0].rows, expected.rows);
        for (std::size_t other = 0; other < 8; ++other) {
            expect_near(real[0].first.send_rows[other], expected.first.send_rows[other]);
            expect_near(real[0].first.receive_rows[other], expected.first.receive_rows[other]);
            expect_near(real[0].second->send_rows[other], expected.second->send_rows[other]);
            expect_near(real[0].second->receive_rows[other], expected.second->receive_rows[other]);
        }
    }
}

TEST(ExpertRounds, AreExpectedToHaveTheMeanRowsOfRealOnes) {
    check_expected_rows({8, 1});
    check_expected_rows({4, 2});  // two ranks have parts of the same experts, one pair of them on two nodes
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
    const ExpertLimits limits = expert_limits(group, rows);
    EXPECT_LT(limits.rows, 2500) << "not the worst case of all rows";
    EXPECT_EQ(plan_expert_rounds(group, rows, spread, limits).size(), 1u);
    EXPECT_EQ(plan_expert_rounds(group, rows, same, limits).size(), 3u) << "8000 choices, 2679 at a time";
}

TEST(ExpertLimits, HoldTheChoicesOfOneRow) {
    for (const std::int64_t rows : {0, 1, 2}) {
        const ExpertLimits limits = expert_limits({{2, 1}, 0, 16, 8}, std::vector<std::int64_t>{rows, rows});
        EXPECT_GE(limits.rows, 1);
        EXPECT_GE(limits.choices, 8);
    }
}

}  // namespace
}  // namespace maestro::parallel
