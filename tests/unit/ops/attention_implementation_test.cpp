// The choice of the implementation of attention on a GPU, and the division of sequences into launches.
#include "ops/attention/implementation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "ops/attention/tables.hpp"

namespace maestro::ops {
namespace {

const std::vector<std::int32_t> kThreeSequences = {0, 5, 5, 69};

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
        EXPECT_EQ(attention_implementation(fused(architecture), causal_mask(kThreeSequences)),
                  AttentionImplementation::packed_causal);
        EXPECT_EQ(attention_implementation(fused(architecture), full_mask(kThreeSequences)),
                  AttentionImplementation::packed_full);
    }
    for (const int architecture : {80, 86, 89, 120, 121}) {  // only the backward pass is padded
        AttentionCase c = fused(architecture);
        EXPECT_EQ(attention_implementation(c, causal_mask(kThreeSequences)),
                  AttentionImplementation::padded_causal);
        EXPECT_EQ(attention_implementation(c, full_mask(kThreeSequences)),
                  AttentionImplementation::padded_full);
        c.backward = false;
        EXPECT_EQ(attention_implementation(c, causal_mask(kThreeSequences)),
                  AttentionImplementation::packed_causal);
        EXPECT_EQ(attention_implementation(c, full_mask(kThreeSequences)),
                  AttentionImplementation::packed_full);
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
        return attention_implementation(c, causal_mask(kThreeSequences));
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
        return attention_implementation(c, causal_mask(kThreeSequences));
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
    EXPECT_EQ(attention_implementation(c, causal_mask(kThreeSequences)),
              AttentionImplementation::packed_causal);
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

/// Returns the launches of a rank with so many heads.
std::vector<AttentionLaunch> launches_of(const std::vector<std::int32_t>& lengths, std::int64_t heads) {
    return attention_launches(of_lengths(lengths), heads);
}

using Launches = std::vector<AttentionLaunch>;

TEST(AttentionLaunches, HaveConsecutiveSequences) {
    EXPECT_EQ(launches_of({}, 32), Launches{});
    EXPECT_EQ(launches_of({0, 0}, 32), Launches{});
    EXPECT_EQ(launches_of({1}, 32), (Launches{{0, 1, {16, 128}}}));
    EXPECT_EQ(launches_of({0, 128, 0, 129}, 32), (Launches{{0, 2, {8, 256}}}));
    EXPECT_EQ(launches_of({1024, 1, 1}, 32), (Launches{{0, 2, {2, 1024}}, {2, 1, {16, 128}}}));
    EXPECT_EQ(launches_of({5, 1025, 4000, 7}, 32),
              (Launches{{0, 1, {16, 128}}, {1, 1, {1, 2048}}, {2, 1, {1, 4096}}, {3, 1, {16, 128}}}));
}

/// The same as with 32 heads before tp 8.
TEST(AttentionLaunches, TakeMoreSequencesWhereHeadsAreFew) {
    const std::vector<std::int32_t> short_ones(32, 256), longer(8, 1024);
    EXPECT_EQ(launches_of(short_ones, 32),
              (Launches{{0, 8, {8, 256}}, {8, 8, {8, 256}}, {16, 8, {8, 256}}, {24, 8, {8, 256}}}));
    EXPECT_EQ(launches_of(short_ones, 16), (Launches{{0, 16, {16, 256}}, {16, 16, {16, 256}}}));
    EXPECT_EQ(launches_of(short_ones, 4), (Launches{{0, 32, {32, 256}}}));
    EXPECT_EQ(launches_of(longer, 32).size(), 4U);
    EXPECT_EQ(launches_of(longer, 4), (Launches{{0, 8, {8, 1024}}}));
    EXPECT_EQ(launches_of({8192}, 4), (Launches{{0, 1, {1, 8192}}}));
    // 2048 rows of 32 heads are 10922 of 6: 42 sequences of 256 rows, and 32 is a power of two.
    EXPECT_EQ(launches_of(std::vector<std::int32_t>(33, 256), 6),
              (Launches{{0, 32, {32, 256}}, {32, 1, {8, 256}}}));
    // No plan keeps more than 256 MiB of gradients of scores: 2 x 4096^2 bytes for 8 sequences and heads.
    EXPECT_EQ(launches_of({4096, 4096, 4096}, 4), (Launches{{0, 2, {2, 4096}}, {2, 1, {1, 4096}}}));
    EXPECT_EQ(launches_of({8192, 8192}, 4), (Launches{{0, 1, {1, 8192}}, {1, 1, {1, 8192}}}));
}

/// A plan for more sequences than 2048 rows takes memory, which has to be in proportion to the rows.
TEST(AttentionLaunches, FillAQuarterOfAPlanForMoreSequences) {
    EXPECT_EQ(launches_of(std::vector<std::int32_t>(9, 129), 4), (Launches{{0, 9, {16, 256}}}));
    EXPECT_EQ(launches_of(std::vector<std::int32_t>(17, 60), 4),
              (Launches{{0, 16, {16, 128}}, {16, 1, {16, 128}}}));
    EXPECT_EQ(launches_of(std::vector<std::int32_t>(17, 61), 4), (Launches{{0, 17, {32, 128}}}));
    EXPECT_EQ(launches_of({1025, 1, 1}, 4), (Launches{{0, 2, {2, 2048}}, {2, 1, {16, 128}}}));
    // Queries count: between slices of a ring, few of them may attend to many keys.
    const SequenceRows few(VarlenMask{{0, 1, 2}, {0, 2048, 4096}, {2048, 2048}});
    EXPECT_EQ(attention_launches(few, 4), (Launches{{0, 1, {1, 2048}}, {1, 1, {1, 2048}}}));
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
        std::vector<std::int32_t> lengths(random() % 100);
        const unsigned most = 1U << (random() % 13);
        for (std::int32_t& length : lengths)
            length = static_cast<std::int32_t>(random() % (random() % 2 == 0 ? most : most / 4 + 1));
        const SequenceRows rows = of_lengths(lengths);
        const auto heads = static_cast<std::int64_t>(1 + random() % 40);
        std::int64_t next = 0;
        for (const auto& [first, count, plan] : attention_launches(rows, heads)) {
            ASSERT_EQ(first, next);
            ASSERT_GT(count, 0);
            ASSERT_LE(count, plan.sequences);
            std::int64_t max_seqlen = 0, queries = 0;
            for (; next < first + count; ++next) {
                const std::int64_t length = rows.queries[static_cast<std::size_t>(next)].count;
                ASSERT_GT(length, 0);
                max_seqlen = std::max(max_seqlen, length);
                queries += length;
            }
            ASSERT_LE(max_seqlen, plan.max_seqlen);
            ASSERT_TRUE(plan.max_seqlen == 128 || 2 * max_seqlen > plan.max_seqlen);
            if (plan.sequences == std::max<std::int64_t>(2048 / plan.max_seqlen, 1)) continue;
            ASSERT_LT(plan.sequences, 2 * count);
            ASSERT_LE(plan.rows() * heads, 2048 * 32);
            ASSERT_LE(2 * plan.rows() * plan.max_seqlen * heads, 256 << 20);
            ASSERT_LE(plan.rows(), 4 * queries);
        }
        ASSERT_EQ(next, std::ssize(rows.queries));
        ASSERT_EQ(rows.queries.empty() ? 0 : rows.queries.back().end(),
                  std::accumulate(lengths.begin(), lengths.end(), 0));
    }
}

TEST(AttentionLaunches, HaveNoOtherPlansThanThoseThatAreBuilt) {
    using Sizes = std::vector<PlanSize>;
    EXPECT_EQ(plan_sizes(256, 32, 100, 25600), (Sizes{{8, 256}}));
    EXPECT_EQ(plan_sizes(256, 4, 1, 256), (Sizes{{8, 256}}));
    EXPECT_EQ(plan_sizes(256, 4, 8, 2048), (Sizes{{8, 256}}));
    EXPECT_EQ(plan_sizes(256, 4, 9, 2304), (Sizes{{8, 256}, {16, 256}}));
    EXPECT_EQ(plan_sizes(256, 4, 32, 8192), (Sizes{{8, 256}, {16, 256}, {32, 256}}));
    EXPECT_EQ(plan_sizes(256, 4, 1000, 256000), (Sizes{{8, 256}, {16, 256}, {32, 256}, {64, 256}}));
    EXPECT_EQ(plan_sizes(8192, 4, 8, 65536), (Sizes{{1, 8192}}));
    // Not enough queries for more than 3000 rows of plans.
    EXPECT_EQ(plan_sizes(256, 4, 100, 750), (Sizes{{8, 256}, {12, 256}}));
    EXPECT_EQ(plan_sizes(2048, 4, 100, 750), (Sizes{{1, 2048}, {2, 2048}}));
    EXPECT_EQ(plan_sizes(256, 4, 100, 512), (Sizes{{8, 256}}));
}

/// The backward pass over causal sequences of one KV head.
class Backward {
public:
    Backward(const std::vector<std::int32_t>& lengths, std::int64_t heads) {
        std::vector<std::int32_t> offsets{0};
        for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
        mask_ = causal_mask(offsets);
        const std::int64_t rows = offsets.back(), dim = 64;
        const Tensor q(nullptr, DType::bf16, {rows, heads * dim}), k(nullptr, DType::bf16, {rows, dim}),
            lse(nullptr, DType::f32, {rows, heads});
        t_ = {.q = q, .k = k, .values = k, .out = q, .lse = lse, .dout = q, .dq = q, .dk = k, .dvalues = k};
    }
    /// Returns the bytes of scratch memory that the launches of these sequences take.
    std::size_t used(const backend::AttentionSupport& support) const {
        const AttentionSizes sizes = attention_sizes(t_, mask_);
        AttentionCase c{.support = support, .inputs = DType::bf16, .results = DType::bf16};
        c.heads = sizes.heads, c.dim = sizes.dim, c.max_seqlen = sizes.max_seqlen, c.backward = true;
        const AttentionImplementation implementation = attention_implementation(c, mask_);
        backend::Arena scratch;
        PackedAttention(attention_shape(t_), sizes, mask_, implementation, support).allocate(t_, scratch);
        return scratch.peak();
    }
    /// Returns the bytes that are planned with these sequences for others, up to so many.
    std::size_t planned(const backend::AttentionSupport& support, std::int64_t sequences) const {
        const auto meta = backend::make_meta({}, {1, false, support});
        backend::Arena memory, scratch;
        AttentionTables tables;
        tables.reserve(*meta, 1, {t_.q.dim(0), t_.k.dim(0), sequences}, true, memory);
        attention_backward(*meta, t_.dout, t_.out, t_.q, t_.k, t_.values, t_.lse, mask_, t_.dq, t_.dk,
                           t_.dvalues, scratch, &tables);
        return scratch.peak();
    }

private:
    VarlenMask mask_;
    AttentionTensors t_;
};

/// Memory is planned with the longest samples. No micro-batch of other samples may take more.
TEST(AttentionMemory, OfTheLongestSequencesSufficesForOthers) {
    std::mt19937 random(5);
    const backend::AttentionSupport linear{.architecture = 90, .linear_backward = true};
    for (const backend::AttentionSupport& support :
         {linear, backend::AttentionSupport{90}, backend::AttentionSupport{80}})
        for (int round = 0; round < 200; ++round) {
            const auto heads = static_cast<std::int64_t>(1U << (random() % 6));
            std::vector<std::int32_t> longest(1 + random() % 40);
            const unsigned most = 32U << (random() % 9);
            for (std::int32_t& length : longest) length = static_cast<std::int32_t>(1 + random() % most);
            const std::size_t planned = Backward(longest, heads).planned(support, std::ssize(longest));
            for (int other = 0; other < 10; ++other) {
                std::vector<std::int32_t> lengths = longest;
                for (std::int32_t& length : lengths)
                    length = std::max(length / static_cast<std::int32_t>(1 + random() % 4), 1);
                std::shuffle(lengths.begin(), lengths.end(), random);
                ASSERT_LE(Backward(lengths, heads).used(support), planned);
            }
        }
}

/// Nor may one sequence cost the memory of several.
TEST(AttentionMemory, OfOneSequenceIsThatOfItsPlan) {
    for (const std::int32_t length : {100, 1000, 2000, 4000, 8000}) {
        const Backward one({length}, 4);
        EXPECT_EQ(one.planned({.architecture = 90}, 1), one.used({.architecture = 90}));
    }
}

}  // namespace
}  // namespace maestro::ops
