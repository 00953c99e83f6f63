// The choice of the implementation of attention on a GPU, and the division of sequences into launches.
#include "ops/attention/implementation.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "ops/attention/packed_attention.hpp"

namespace maestro::ops {
namespace {

const std::vector<std::int32_t> kOffsets = {0, 5, 5, 69};

AttentionCase fused(int architecture = 90) {
    return {.support = {.architecture = architecture},
            .inputs = DType::bf16,
            .results = DType::bf16,
            .heads = 16,
            .dim = 64,
            .max_seqlen = 64,
            .backward = true,
            .aligned = true};
}

TEST(AttentionImplementation, DependsOnTheMask) {
    for (const int architecture : {90, 100, 103}) {
        EXPECT_EQ(attention_implementation(fused(architecture), causal_mask(kOffsets)),
                  AttentionImplementation::packed_causal);
        EXPECT_EQ(attention_implementation(fused(architecture), full_mask(kOffsets)),
                  AttentionImplementation::packed_full);
    }
    for (const int architecture : {80, 86, 89, 120, 121}) {  // only the backward pass is padded
        AttentionCase c = fused(architecture);
        EXPECT_EQ(attention_implementation(c, causal_mask(kOffsets)), AttentionImplementation::padded_causal);
        EXPECT_EQ(attention_implementation(c, full_mask(kOffsets)), AttentionImplementation::padded_full);
        c.backward = false;
        EXPECT_EQ(attention_implementation(c, causal_mask(kOffsets)), AttentionImplementation::packed_causal);
        EXPECT_EQ(attention_implementation(c, full_mask(kOffsets)), AttentionImplementation::packed_full);
    }
    const VarlenMask others{{0, 5, 5, 7}, {0, 9, 9, 10}, {9, 9, 9, 9, 9, 1, 1}};
    EXPECT_EQ(attention_implementation(fused(), others), AttentionImplementation::packed_full);
    VarlenMask less = others;
    less.kv_limit[6] = 0;
    EXPECT_EQ(attention_implementation(fused(), less), AttentionImplementation::kernel);
    // Rows that attend to nothing, and keys that no query attends to.
    for (const VarlenMask& rectangles : {VarlenMask{{0, 3}, {0, 0}, {0, 0, 0}},
                                         {{0, 0}, {0, 3}, {}},
                                         {{0, 3, 4}, {0, 5, 6}, {0, 4, 4, 1}}}) {
        AttentionCase c = fused();
        EXPECT_EQ(attention_implementation(c, rectangles), AttentionImplementation::packed_full);
        c.gaps = false;
        EXPECT_EQ(attention_implementation(c, rectangles), AttentionImplementation::kernel);
        c = fused(80);
        c.backward = true;
        EXPECT_EQ(attention_implementation(c, rectangles), AttentionImplementation::kernel);
    }
}

TEST(AttentionImplementation, IsTheKernelWhereTheLibraryHasNoPlan) {
    const auto implementation_of = [](auto&& change) {
        AttentionCase c = fused();
        change(c);
        return attention_implementation(c, causal_mask(kOffsets));
    };
    EXPECT_EQ(implementation_of([](AttentionCase&) {}), AttentionImplementation::packed_causal);
    for (const int architecture : {0, 70, 75, 87, 110})
        EXPECT_EQ(implementation_of([&](AttentionCase& c) { c.support.architecture = architecture; }),
                  AttentionImplementation::kernel);
    for (const DType type : {DType::f32, DType::f64}) {
        EXPECT_EQ(implementation_of([&](AttentionCase& c) { c.inputs = type; }),
                  AttentionImplementation::kernel);
        EXPECT_EQ(implementation_of([&](AttentionCase& c) { c.results = type; }),
                  AttentionImplementation::kernel);
    }
    for (const std::int64_t dim : {4, 20, 129, 264})
        EXPECT_EQ(implementation_of([&](AttentionCase& c) { c.dim = dim; }), AttentionImplementation::kernel);
    for (const std::int64_t dim : {8, 72, 80, 128, 136, 256})
        EXPECT_EQ(implementation_of([&](AttentionCase& c) { c.dim = dim; }),
                  AttentionImplementation::packed_causal);
    for (const int architecture : {80, 100, 120})
        EXPECT_EQ(implementation_of([&](AttentionCase& c) {
                      c.support.architecture = architecture;
                      c.dim = 136;
                  }),
                  AttentionImplementation::kernel);
    EXPECT_EQ(implementation_of([](AttentionCase& c) { c.aligned = false; }),
              AttentionImplementation::kernel);
    EXPECT_EQ(implementation_of([](AttentionCase& c) { c.max_seqlen = 0; }), AttentionImplementation::kernel);
}

TEST(AttentionImplementation, IsTheKernelWhereScoresDoNotFit) {
    const auto implementation_of = [](int architecture, std::int64_t max_seqlen, bool backward) {
        AttentionCase c = fused(architecture);
        c.heads = 32;
        c.max_seqlen = max_seqlen;
        c.backward = backward;
        return attention_implementation(c, causal_mask(kOffsets));
    };
    EXPECT_EQ(implementation_of(90, 8192, true),
              AttentionImplementation::packed_causal);  // 2 bytes x 8192^2 x 32 heads are 4 GiB
    EXPECT_EQ(implementation_of(90, 8193, true), AttentionImplementation::kernel);
    EXPECT_EQ(implementation_of(80, 8192, true), AttentionImplementation::padded_causal);
    EXPECT_EQ(implementation_of(120, 8193, true), AttentionImplementation::kernel);
    EXPECT_EQ(implementation_of(90, 32768, false), AttentionImplementation::packed_causal);
    EXPECT_EQ(implementation_of(100, 32768, true), AttentionImplementation::packed_causal);
    AttentionCase c = fused();
    c.heads = 31;  // the length after rounding up must fit
    EXPECT_EQ(max_planned_seqlen(c), 8192);
    c.heads = 33;
    EXPECT_EQ(max_planned_seqlen(c), 4096);
}

TEST(AttentionImplementation, LinearBackwardPassesHaveNoLimitOfRows) {
    AttentionCase c = fused();
    c.support.linear_backward = true;
    c.heads = 32;
    c.max_seqlen = 131072;
    c.backward = true;
    EXPECT_EQ(attention_implementation(c, causal_mask(kOffsets)), AttentionImplementation::packed_causal);
    // Gradients of all scores, as long as they take at most 256 MiB: 2 bytes x 2048^2 x 32 heads.
    backend::AttentionClass shape{
        .backward = true, .heads = 32, .kv_heads = 8, .dim = 128, .sequences = 1, .max_seqlen = 2048};
    const std::size_t scores = 256u << 20, rows = 2048u * 32;
    EXPECT_EQ(backend::attention_workspace(shape, c.support), (128u << 10) + scores + rows * (4 + 8 * 128));
    shape.max_seqlen = 4096;
    EXPECT_EQ(backend::attention_workspace(shape, c.support),
              (128u << 10) + 2 * rows * (4 + 8 * 128) + 2 * rows / 8);
    EXPECT_EQ(backend::attention_workspace(shape, {.architecture = 90}),
              (128u << 10) + 4 * scores + 2 * rows * (4 + 8 * 128));
}

TEST(AttentionImplementation, PlansAreForPowersOfTwo) {
    EXPECT_EQ(planned_seqlen(1), 128);
    EXPECT_EQ(planned_seqlen(128), 128);
    EXPECT_EQ(planned_seqlen(129), 256);
    EXPECT_EQ(planned_seqlen(8192), 8192);
}

SequenceRows of_lengths(const std::vector<std::int32_t>& lengths) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
    return SequenceRows(causal_mask(offsets));
}

TEST(AttentionLaunches, HaveConsecutiveSequences) {
    using Launches = std::vector<AttentionLaunch>;
    EXPECT_EQ(attention_launches(of_lengths({})), Launches{});
    EXPECT_EQ(attention_launches(of_lengths({0, 0})), Launches{});
    EXPECT_EQ(attention_launches(of_lengths({1})), (Launches{{0, 1, 16, 128}}));
    EXPECT_EQ(attention_launches(of_lengths({0, 128, 0, 129})), (Launches{{0, 2, 8, 256}}));
    EXPECT_EQ(attention_launches(of_lengths({1024, 1, 1})), (Launches{{0, 2, 2, 1024}, {2, 1, 16, 128}}));
    EXPECT_EQ(attention_launches(of_lengths({5, 1025, 4000, 7})),
              (Launches{{0, 1, 16, 128}, {1, 1, 1, 2048}, {2, 1, 1, 4096}, {3, 1, 16, 128}}));
}

TEST(AttentionLaunches, SkipEmptySequences) {
    const SequenceRows rows(VarlenMask{{0, 0, 5, 5, 5, 7}, {0, 0, 9, 9, 9, 10}, {9, 9, 9, 9, 9, 1, 1}});
    EXPECT_EQ(rows.queries, (std::vector<SequenceRows::Rows>{{0, 5}, {5, 2}}));
    EXPECT_EQ(rows.keys, (std::vector<SequenceRows::Rows>{{0, 9}, {9, 1}}));
    EXPECT_FALSE(rows.gaps);
}

TEST(AttentionLaunches, SkipRowsThatAttendToNothing) {
    // The last two of four queries attend to three of five keys; then queries and keys without the other.
    const SequenceRows rows(VarlenMask{{0, 4, 6, 6}, {0, 5, 5, 7}, {0, 0, 3, 3, 0, 0}});
    EXPECT_EQ(rows.queries, (std::vector<SequenceRows::Rows>{{2, 2}}));
    EXPECT_EQ(rows.keys, (std::vector<SequenceRows::Rows>{{0, 3}}));
    EXPECT_TRUE(rows.gaps);
}

TEST(AttentionLaunches, CoverEverySequenceOnceWithinTheirClasses) {
    std::mt19937 random(7);
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::int32_t> lengths(random() % 40);
        for (std::int32_t& length : lengths)
            length = static_cast<std::int32_t>(random() % (1U << (random() % 13)));
        const SequenceRows rows = of_lengths(lengths);
        std::int64_t next = 0;
        for (const AttentionLaunch& launch : attention_launches(rows)) {
            ASSERT_EQ(launch.first, next);
            ASSERT_GT(launch.count, 0);
            ASSERT_LE(launch.count, launch.sequences);
            ASSERT_EQ(launch.sequences, std::max<std::int64_t>(2048 / launch.max_seqlen, 1));
            std::int64_t max_seqlen = 0;
            for (; next < launch.first + launch.count; ++next) {
                const auto at = static_cast<std::size_t>(next);
                ASSERT_GT(rows.queries[at].count, 0);
                max_seqlen = std::max<std::int64_t>(max_seqlen, rows.queries[at].count);
            }
            ASSERT_LE(max_seqlen, launch.max_seqlen);
            ASSERT_TRUE(launch.max_seqlen == 128 || 2 * max_seqlen > launch.max_seqlen);
        }
        ASSERT_EQ(next, std::ssize(rows.queries));
        ASSERT_EQ(rows.queries.empty() ? 0 : rows.queries.back().end(),
                  std::accumulate(lengths.begin(), lengths.end(), 0));
    }
}

}  // namespace
}  // namespace maestro::ops
