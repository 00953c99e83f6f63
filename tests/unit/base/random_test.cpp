// The counter-based generator: the published answers, the moments, and independence of who asks.
#include "base/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace maestro {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Known answers for philox4x32-10 of the Random123 distribution (kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
    constexpr std::uint32_t all = 0xffffffff;
    EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox({all, all, all, all}, {all, all}),
              (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, HasTheMomentsOfItsDistributions) {
    const Random random(3, "moments");
    constexpr int kCount = 200'000;
    double uniform = 0, first = 0, second = 0, fourth = 0, lag = 0, before = 0;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        const double u = random.uniform(i), n = random.normal(i);
        ASSERT_TRUE(u >= 0 && u < 1);
        uniform += u;
        first += n;
        second += n * n;
        fourth += n * n * n * n;
        lag += n * before;
        before = n;
    }
    // Five standard deviations of each mean.
    const double five = 5 / std::sqrt(kCount);
    EXPECT_NEAR(uniform / kCount, 0.5, five * std::sqrt(1.0 / 12));
    EXPECT_NEAR(first / kCount, 0, five);
    EXPECT_NEAR(second / kCount, 1, five * std::sqrt(2));
    EXPECT_NEAR(fourth / kCount, 3, five * std::sqrt(96));
    EXPECT_NEAR(lag / kCount, 0, five);
}

TEST(Random, DependsOnSeedStreamAndIndexAlone) {
    const Random random(5, "a");
    const std::uint64_t seventh = random.bits(7);
    random.bits(100);
    EXPECT_EQ(random.bits(7), seventh);
    EXPECT_EQ(Random(5, "a").bits(7), seventh);
    std::set<std::uint64_t> all;
    for (std::uint64_t seed : {0ull, 1ull, 5ull, 1ull << 40})
        for (const char* stream : {"a", "b", "init/vision.x", "init/vision.y"})
            for (std::uint64_t index : {0ull, 7ull, 1ull << 33}) all.insert(Random(seed, stream).bits(index));
    EXPECT_EQ(all.size(), 4u * 4u * 3u);
}

TEST(Random, PermutationsHoldEveryElementOnceAndDiffer) {
    const auto one = Random(1, "order/epoch 0").permutation(1000),
               two = Random(1, "order/epoch 1").permutation(1000);
    auto sorted = one;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int64_t> all(1000);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
    EXPECT_NE(one, two);
    EXPECT_NE(one, all);
    EXPECT_THAT(Random(1, "x").permutation(1), testing::ElementsAre(0));
    EXPECT_TRUE(Random(1, "x").permutation(0).empty());
    // Every element is as often at the front as another: 24 orders of 4 elements.
    std::array<int, 4> front{};
    for (std::uint64_t seed = 0; seed < 4000; ++seed)
        ++front[static_cast<std::size_t>(Random(seed, "front").permutation(4).front())];
    for (const int count : front) EXPECT_NEAR(count, 1000, 5 * std::sqrt(4000 * 0.25 * 0.75));
}

}  // namespace
}  // namespace maestro
