#include "parallel/partition.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "support/errors.hpp"

namespace maestro::parallel::test {
namespace {

using Lengths = std::vector<std::int64_t>;

/// Returns the pairs of a query and a key that a slice works on.
double causal_pairs(const Partition& partition, int cp) {
    double pairs = 0;
    for (const RowRange& range : partition.slice(cp))
        for (std::int64_t row = range.first; row < range.first + range.count; ++row)
            pairs += static_cast<double>(row) + 1;
    return pairs;
}

TEST(Partition, EveryRowIsHeldOnceAndNoUnitIsDivided) {
    std::mt19937 random(7);
    const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int trial = 0; trial < 2000; ++trial) {
        const std::int64_t unit = trial % 3 == 0 ? 4 : 1;
        const Degrees degrees{1 + upto(5), 1 + upto(4)};
        Lengths lengths;
        for (int s = upto(6); s >= 0; --s)
            lengths.push_back(unit * (trial % 2 == 0 ? upto(3 * degrees.cp) : upto(200)));
        const AttentionMask attention = trial % 5 < 3 ? AttentionMask::causal : AttentionMask::bidirectional;
        const Partition partition(lengths, attention, degrees, unit);
        const auto placements = partition.placements();
        std::vector<std::int64_t> held(static_cast<std::size_t>(degrees.ranks()), 0);
        for (std::size_t s = 0; s < lengths.size(); ++s) {
            std::int64_t next = 0;
            for (const RowPlacement& p : placements[s]) {
                EXPECT_EQ(p.first, next);
                EXPECT_GT(p.count, 0);
                EXPECT_EQ(p.first % unit, 0);
                EXPECT_EQ(p.count % unit, 0);
                next += p.count;
                held[p.rank] += p.count;
            }
            EXPECT_EQ(next, lengths[s]);
        }
        for (int c = 0; c < degrees.cp; ++c) {
            std::vector<RowRange> joined;  // the ranks of a slice, one after another, hold the slice
            for (int t = 0; t < degrees.tp; ++t) {
                EXPECT_EQ(held[c * degrees.tp + t], partition.tp_rows(c)[t]);
                EXPECT_LE(partition.tp_rows(c)[t], partition.tp_rows(c)[0]);
                EXPECT_GE(partition.tp_rows(c)[t] + unit, partition.tp_rows(c)[0]);
                for (const RowRange& range : partition.rows_of(c, t))
                    if (!joined.empty() && joined.back().sequence == range.sequence &&
                        joined.back().first + joined.back().count == range.first)
                        joined.back().count += range.count;
                    else
                        joined.push_back(range);
            }
            EXPECT_THAT(joined, testing::ElementsAreArray(partition.slice(c)));
        }
    }
}

TEST(Partition, LocalRowsFollowTheOrderOfASlice) {
    const Partition partition(Lengths{8, 5}, AttentionMask::causal, {2, 2});
    // 8 rows are cut into chunks of 2 rows, and 5 rows into chunks of 2, 1, 1 and 1.
    EXPECT_THAT(partition.slice(0), testing::ElementsAre(RowRange{0, 0, 2}, RowRange{0, 6, 2},
                                                         RowRange{1, 0, 2}, RowRange{1, 4, 1}));
    EXPECT_THAT(partition.slice(1), testing::ElementsAre(RowRange{0, 2, 4}, RowRange{1, 2, 2}));
    EXPECT_THAT(partition.rows_of(0, 1), testing::ElementsAre(RowRange{1, 0, 2}, RowRange{1, 4, 1}));
    EXPECT_THAT(
        partition.placements()[1],
        testing::ElementsAre(RowPlacement{0, 2, 1, 0}, RowPlacement{2, 2, 3, 1}, RowPlacement{4, 1, 1, 2}));
}

TEST(Partition, ZigzagBalancesCausalWork) {
    for (const int cp : {2, 3, 4, 8}) {
        const Partition partition(Lengths{1000, 317, 64}, AttentionMask::causal, {cp, 1});
        double least = 1e300, most = 0;
        for (int c = 0; c < cp; ++c) {
            least = std::min(least, causal_pairs(partition, c));
            most = std::max(most, causal_pairs(partition, c));
        }
        EXPECT_LT(most, 1.03 * least) << cp;
    }
}

TEST(Partition, KeepsSmallPicturesWholeAndCutsLargeOnes) {
    const Partition many(Lengths(40, 16), AttentionMask::bidirectional, {4, 1}, 4);
    for (int s = 0; s < 40; ++s) EXPECT_FALSE(many.is_cut(s));
    for (int c = 0; c < 4; ++c) EXPECT_EQ(many.slice_rows(c), 160);
    const Partition one(Lengths{400}, AttentionMask::bidirectional, {4, 1}, 4);
    EXPECT_TRUE(one.is_cut(0));
    for (int c = 0; c < 4; ++c) EXPECT_EQ(one.slice_rows(c), 100);
    const Partition mixed(Lengths{16, 4000, 16, 16, 16}, AttentionMask::bidirectional, {4, 1}, 4);
    EXPECT_TRUE(mixed.is_cut(1));
    EXPECT_FALSE(mixed.is_cut(0));
    const Partition alone(Lengths{400, 12}, AttentionMask::bidirectional, {1, 4}, 4);
    EXPECT_FALSE(alone.is_cut(0));
}

TEST(Partition, RefusesMoreRowsThan32BitsNumber) {
    constexpr std::int64_t kMost = 0x7fffffff;
    const auto rows_of = [](const Lengths& lengths) {
        return Partition(lengths, AttentionMask::causal, {1, 1}).rows();
    };
    EXPECT_EQ(rows_of({kMost - 5, 5}), kMost);
    const auto refused = testing_support::error_of([&] { rows_of({kMost - 5, 6}); });
    EXPECT_EQ(refused.code, ExitCode::broken_invariant);
    EXPECT_THAT(refused.what, testing::HasSubstr("2147483648 rows of a micro-batch, at most 2147483647"));
}

}  // namespace
}  // namespace maestro::parallel::test
