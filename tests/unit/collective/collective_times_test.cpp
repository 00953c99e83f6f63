// Times between measured ones, compared with the closed forms from which the measured ones are made.
#include "collective/collective_times.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/collective_rows.hpp"

namespace maestro::collective {
namespace {

using testing_support::rows_of_link;
constexpr auto kGather = CollectiveKind::all_gather;
constexpr LinkCost kFast{.latency_s = 2e-5, .bandwidth = 3e9}, kSlow{.latency_s = 1e-3, .bandwidth = 1e7};

std::vector<CollectiveRow> joined(std::vector<CollectiveRow> a, const std::vector<CollectiveRow>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
double closed_form(const LinkCost& link, int ranks, double bytes) {
    return link.latency_s + bytes * (ranks - 1) / ranks / link.bandwidth;
}

/// Of latency and bandwidth, at any size above the smallest, among any number of ranks.
TEST(CollectiveTimes, AreThoseOfLatencyAndBandwidth) {
    const CollectiveTimes times(joined(rows_of_link(8, 1, kFast), rows_of_link(2, 1, kFast)));
    for (const int ranks : {2, 3, 5, 8, 64})
        for (const double bytes : {7.0, 999.0, 5e4, 1e6, 3.3e8, 7e11}) {
            const double due = closed_form(kFast, ranks, bytes);
            for (const auto kind : {kGather, CollectiveKind::reduce_scatter, CollectiveKind::all_to_all})
                EXPECT_NEAR(*times.seconds(kind, ranks, 1, bytes), due, 1e-12 * due) << ranks << " " << bytes;
            EXPECT_NEAR(*times.seconds(CollectiveKind::all_reduce, ranks, 1, bytes), 2 * due, 2e-12 * due);
        }
    EXPECT_EQ(*times.seconds(kGather, 2, 1, 0), closed_form(kFast, 2, 1)) << "of the smallest row";
}

/// The latency of a ring of n ranks is that of n - 1 messages.
TEST(CollectiveTimes, LieBetweenThoseOfOtherNumbersOfRanks) {
    const auto ring = [](int ranks) { return LinkCost{2e-5 * (ranks - 1), 3e9}; };
    const CollectiveTimes times(joined(rows_of_link(2, 1, ring(2)), rows_of_link(8, 1, ring(8))));
    for (const int ranks : {2, 3, 4, 7, 8})
        EXPECT_NEAR(*times.seconds(kGather, ranks, 1, 4e5), closed_form(ring(ranks), ranks, 4e5), 1e-15);
    EXPECT_NEAR(*times.seconds(kGather, 16, 1, 4e5), closed_form(ring(8), 16, 4e5), 1e-15)
        << "a latency that nobody has measured";
}

/// Each pair of neighbouring rows has a latency and a bandwidth.
TEST(CollectiveTimes, FollowEachPieceOfTheMeasuredTimes) {
    const auto at = [](std::vector<std::pair<double, double>> points, double bytes) {
        std::vector<CollectiveRow> rows;
        for (const auto& [size, seconds] : points) rows.push_back({kGather, 2, 1, size, seconds});
        return *CollectiveTimes(rows).seconds(kGather, 2, 1, bytes);
    };
    const std::vector<std::pair<double, double>> points{{4000, 9}, {1000, 2}, {2000, 3}};  // in any order
    EXPECT_DOUBLE_EQ(at(points, 10), 2);
    EXPECT_DOUBLE_EQ(at(points, 1500), 2.5);
    EXPECT_DOUBLE_EQ(at(points, 3000), 6);
    EXPECT_DOUBLE_EQ(at(points, 5000), 12);
    EXPECT_DOUBLE_EQ(at({{1000, 3}, {2000, 3}}, 4000), 6) << "the bandwidth of the last row";
    EXPECT_DOUBLE_EQ(at({{1000, 4}, {2000, 3}}, 1500), 3.5);
    EXPECT_DOUBLE_EQ(at({{1000, 4}, {2000, 3}}, 4000), 6);
    EXPECT_DOUBLE_EQ(at({{1000, 3}}, 500), 3);
    EXPECT_DOUBLE_EQ(at({{1000, 3}}, 3000), 9);
}

TEST(CollectiveTimes, AreKnownWithinNodesOrAcrossThem) {
    const CollectiveTimes none, within(rows_of_link(kGather, 4, 1, kFast)),
        across(rows_of_link(kGather, 4, 2, kSlow)),
        both(joined(rows_of_link(kGather, 4, 1, kFast), rows_of_link(kGather, 4, 2, kSlow)));
    EXPECT_TRUE(none.empty());
    EXPECT_FALSE(none.seconds(kGather, 4, 1, 1e6));
    EXPECT_FALSE(within.seconds(kGather, 4, 2, 1e6));
    EXPECT_FALSE(across.seconds(kGather, 4, 1, 1e6));
    EXPECT_FALSE(within.seconds(CollectiveKind::all_reduce, 4, 1, 1e6));
    EXPECT_NEAR(*both.seconds(kGather, 4, 1, 1e6), closed_form(kFast, 4, 1e6), 1e-15);
    EXPECT_NEAR(*both.seconds(kGather, 4, 2, 1e6), closed_form(kSlow, 4, 1e6), 1e-12);
}

/// Sixteen ranks on two nodes use eight times as many connections between them as two ranks.
TEST(CollectiveTimes, AcrossNodesAreThoseOfAsManyRanksPerNode) {
    const LinkCost full{1e-5, 8e9};
    const CollectiveTimes times(
        joined(joined(rows_of_link(kGather, 2, 2, kSlow), rows_of_link(kGather, 8, 8, kSlow)),
               joined(rows_of_link(kGather, 16, 2, full), rows_of_link(kGather, 64, 8, full))));
    for (const int nodes : {2, 4, 8, 16}) {
        const double alone = closed_form(kSlow, nodes, 1e6), filled = closed_form(full, 8 * nodes, 1e6);
        EXPECT_NEAR(*times.seconds(kGather, nodes, nodes, 1e6), alone, 1e-12 * alone);
        EXPECT_NEAR(*times.seconds(kGather, 8 * nodes, nodes, 1e6), filled, 1e-12 * filled);
        EXPECT_NEAR(*times.seconds(kGather, 2 * nodes, nodes, 1e6), closed_form(kSlow, 2 * nodes, 1e6), 1e-12)
            << "two per node are nearer to one than to eight";
    }
}

TEST(CollectiveTimes, AreEqualWhereTheirRowsAre) {
    const std::vector<CollectiveRow> rows =
        joined(rows_of_link(kGather, 4, 1, kFast), rows_of_link(kGather, 4, 2, kSlow));
    const CollectiveTimes times(rows), reversed(std::vector<CollectiveRow>(rows.rbegin(), rows.rend()));
    EXPECT_EQ(times, reversed);
    EXPECT_EQ(CollectiveTimes(), CollectiveTimes(std::vector<CollectiveRow>()));
    EXPECT_NE(times, CollectiveTimes());
    const CollectiveTimes slower = times.slower(true, 2);
    EXPECT_NE(times, slower);
    EXPECT_EQ(*slower.seconds(kGather, 4, 2, 1e6), 2 * *times.seconds(kGather, 4, 2, 1e6));
    EXPECT_EQ(*slower.seconds(kGather, 4, 1, 1e6), *times.seconds(kGather, 4, 1, 1e6));
    EXPECT_EQ(*times.slower(false, 2).seconds(kGather, 4, 1, 1e6), 2 * *times.seconds(kGather, 4, 1, 1e6));
}

}  // namespace
}  // namespace maestro::collective
