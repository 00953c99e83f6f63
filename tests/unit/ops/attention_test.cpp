// Packed attention against its definition, for every type, for head sizes and sequences that are no multiple
// of any block, for unaligned tensors, and with several threads.
#include "ops/attention/attention.hpp"

#include "support/plain_attention.hpp"
#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

using testing_support::Numbers;
using testing_support::PlainAttention;
using testing_support::rounding;

struct Case {
    const char* what;
    std::int64_t heads, shared, dim;
    VarlenMask mask;
    std::int64_t before = 0;  ///< columns in front of the values
    std::int64_t shift = 0;   ///< elements by which every tensor is off an aligned address
    double scale = 1;         ///< factor of queries and keys
    double mean = 0;          ///< of keys, and with the opposite sign of queries
};

class Attention : public testing_support::Tensors {
protected:
    static constexpr std::int64_t kGuard = 16;  ///< elements around an output that must not change

    Tensor view(const Tensor& all, std::int64_t first, std::int64_t rows, std::int64_t columns) {
        return Tensor(
            static_cast<std::byte*>(all.data) + first * static_cast<std::int64_t>(size_of(all.dtype)),
            all.dtype, {rows, columns});
    }
    Tensor input(DType type, const Case& c, std::int64_t rows, std::int64_t columns, double scale = 1,
                 double mean = 0) {
        return view(random(type, {rows * columns + c.shift}, scale, mean), c.shift, rows, columns);
    }
    struct Output {
        Tensor all, view;
    };
    /// Filled with NaN, so that an element that is not written, or added to, is noticed.
    Output output(DType type, const Case& c, std::int64_t rows, std::int64_t columns) {
        const Tensor all =
            filled(type, {rows * columns + 2 * kGuard + c.shift}, std::numeric_limits<double>::quiet_NaN());
        return {all, view(all, kGuard + c.shift, rows, columns)};
    }
    /// Returns the last `columns` of each row, and expects that nothing else was written.
    Numbers written(const Output& o, const Case& c, std::int64_t columns) {
        const Numbers all = values(o.all);
        const std::int64_t first = kGuard + c.shift, width = o.view.columns();
        Numbers found;
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(all.size()); ++i) {
            const double value = all[static_cast<std::size_t>(i)];
            const std::int64_t at = i - first;
            if (at >= 0 && at < o.view.size() && at % width >= width - columns)
                found.push_back(value);
            else
                EXPECT_TRUE(std::isnan(value)) << "element " << at << " of " << o.view.size();
        }
        return found;
    }
    Numbers last_columns(const Tensor& t, std::int64_t columns) {
        const Numbers all = values(t);
        Numbers found;
        for (std::int64_t i = 0; i < t.size(); ++i)
            if (i % t.columns() >= t.columns() - columns) found.push_back(all[static_cast<std::size_t>(i)]);
        return found;
    }
    /// Like expect_near(), but infinities must be equal.
    static void expect_equal(const Numbers& found, const Numbers& expected, double tolerance,
                             const char* what) {
        ASSERT_EQ(found.size(), expected.size()) << what;
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            if (std::isinf(expected[i])) {
                ASSERT_EQ(found[i], expected[i]) << what << ", element " << i;
                continue;
            }
            ASSERT_TRUE(std::isfinite(found[i])) << what << ", element " << i;
            difference += std::pow(found[i] - expected[i], 2);
            norm += expected[i] * expected[i];
        }
        EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << what;
    }
    Tensor statistics(DType type, const Numbers& numbers, std::int64_t heads) {
        const auto rows = static_cast<std::int64_t>(numbers.size()) / heads;
        if (type == DType::f64) return list(numbers).reshape({rows, heads});
        return list(std::vector<float>(numbers.begin(), numbers.end())).reshape({rows, heads});
    }

    void expect_definition(const Case& c, DType type, DType result) {
        SCOPED_TRACE(std::string(c.what) + ", " + name_of(type) + " to " + name_of(result));
        const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
        const std::int64_t rows = c.mask.cu_seqlens_q.back(), keys = c.mask.cu_seqlens_k.back(),
                           q_width = c.heads * c.dim, k_width = c.shared * c.dim;
        const Tensor q = input(type, c, rows, q_width, c.scale, -c.mean),
                     k = input(type, c, keys, k_width, c.scale, c.mean),
                     v = input(type, c, keys, c.before + k_width), dout = input(type, c, rows, q_width),
                     other_out = input(type, c, rows, q_width);
        PlainAttention plain{c.heads, c.shared, c.dim, c.mask, values(q), values(k), last_columns(v, k_width),
                             {},      {},       {},    {},     {}};
        plain.forward();
        const double tolerance = 3 * rounding(result) * (1 + c.mean) * c.scale * c.scale;
        const auto forward = [&] {
            const Output out = output(result, c, rows, q_width), lse = output(sums, c, rows, c.heads);
            attention(b_, q, k, v, c.mask, out.view, lse.view, scratch_);
            return std::array{written(out, c, q_width), written(lse, c, c.heads)};
        };
        const auto found = forward();
        expect_equal(found[0], plain.out, tolerance, "out");
        expect_equal(found[1], plain.lse, 3 * rounding(sums), "lse");
        EXPECT_EQ(forward(), found) << "a second time";

        // Backward as in a ring: lse and out are those over more keys than k has. The other keys have the
        // same total weight, and another result.
        for (double& total : plain.lse) total = std::isinf(total) ? 0.5 : total + std::log(2);
        const Tensor lse = statistics(sums, plain.lse, c.heads);
        plain.lse = values(lse);
        plain.out = values(other_out);
        plain.backward(values(dout));
        const auto backward = [&] {
            const Output dq = output(result, c, rows, q_width), dk = output(result, c, keys, k_width),
                         dv = output(result, c, keys, c.before + k_width);
            attention_backward(b_, dout, other_out, q, k, v, lse, c.mask, dq.view, dk.view, dv.view,
                               scratch_);
            return std::array{written(dq, c, q_width), written(dk, c, k_width), written(dv, c, k_width)};
        };
        const auto back = backward();
        expect_equal(back[0], plain.dq, tolerance, "dq");
        expect_equal(back[1], plain.dk, tolerance, "dk");
        expect_equal(back[2], plain.dvalues, tolerance, "dvalues");
        EXPECT_EQ(backward(), back) << "a second time";
        arena_.reset();
    }
    void expect_definition(const Case& c) {
        expect_definition(c, DType::f64, DType::f64);
        expect_definition(c, DType::f32, DType::f32);
        expect_definition(c, DType::bf16, DType::bf16);
        expect_definition(c, DType::bf16, DType::f32);
    }
};

const std::vector<std::int32_t> kOffsets = {0, 1, 1, 38, 40, 171};  // lengths 1, 0, 37, 2, 131

/// The mask between the queries of one slice of a ring and the keys of another: sequences without keys,
/// without queries, and one whose first queries attend to no key, the next ones to half of the keys, and the
/// last ones to more and more.
VarlenMask ring() {
    VarlenMask v{{0, 30, 30, 130, 131}, {0, 0, 20, 150, 150}, std::vector<std::int32_t>(131, 0)};
    std::fill_n(v.kv_limit.begin() + 70, 30, 65);
    for (std::size_t i = 100; i < 130; ++i) v.kv_limit[i] = static_cast<std::int32_t>(2 * i - 128);
    return v;
}

/// Few queries and many keys, with limits at block boundaries and next to them.
VarlenMask prefixes() {
    return {{0, 3, 10, 11}, {0, 129, 200, 264}, {64, 65, 129, 1, 1, 1, 32, 33, 64, 71, 63}};
}

/// As ring(), but the last queries of a sequence attend to the same keys, as between two slices of a causal
/// ring.
VarlenMask rectangles() {
    VarlenMask v{
        {0, 30, 30, 130, 131, 331, 332}, {0, 0, 20, 150, 150, 250, 251}, std::vector<std::int32_t>(332, 0)};
    std::fill_n(v.kv_limit.begin() + 70, 60, 65);
    std::fill_n(v.kv_limit.begin() + 131, 200, 100);
    v.kv_limit[331] = 1;
    return v;
}

TEST_F(Attention, MatchesTheDefinitionBetweenSlicesOfARing) {
    for (const DType result : {DType::bf16, DType::f32}) {
        expect_definition({"rectangles", 4, 2, 32, rectangles()}, DType::bf16, result);
        expect_definition({"rectangles, columns before the values", 2, 2, 16, rectangles(), 8}, DType::bf16,
                          result);
    }
}

TEST_F(Attention, MatchesTheDefinitionForAnyHeadSize) {
    expect_definition({"heads of 1", 1, 1, 1, causal_mask(kOffsets)});
    expect_definition({"heads of 3", 4, 2, 3, ring(), 18});
    expect_definition({"heads of 16", 4, 2, 16, causal_mask(kOffsets), 96});
    expect_definition({"heads of 64", 6, 1, 64, full_mask(std::vector<std::int32_t>{0, 5, 5, 69}), 448});
    expect_definition({"heads of 80", 2, 1, 80, ring(), 240});
    expect_definition({"heads of 128", 3, 3, 128, prefixes(), 8});
    expect_definition({"heads of 256", 2, 1, 256, prefixes(), 16});
}

TEST_F(Attention, MatchesTheDefinitionForAnyAlignment) {
    expect_definition({"odd columns of values", 2, 2, 16, ring(), 5});
    expect_definition({"off by one", 2, 1, 64, prefixes(), 64, 1});
    expect_definition({"off by half a vector", 2, 1, 72, prefixes(), 36, 4});
    expect_definition({"odd everything", 3, 1, 37, ring(), 111, 7});
}

TEST_F(Attention, MatchesTheDefinitionForLongAndShortSequences) {
    expect_definition({"long", 2, 1, 20, causal_mask(std::vector<std::int32_t>{0, 2, 702, 703, 708})},
                      DType::f32, DType::f32);
    expect_definition({"long", 2, 1, 16, full_mask(std::vector<std::int32_t>{0, 2, 702, 703})}, DType::bf16,
                      DType::bf16);
}

/// Lengths that need many launches and few, with empty sequences at both ends and in between.
TEST_F(Attention, MatchesTheDefinitionForManySequencesOfAnyLength) {
    std::vector<std::int32_t> offsets = {0, 0};
    for (const std::int32_t length : {3, 130, 1, 0, 17, 300, 2, 1, 0, 128, 129, 5, 1, 1, 2, 3, 1, 1, 4, 1, 0})
        offsets.push_back(offsets.back() + length);
    for (const DType result : {DType::bf16, DType::f32}) {
        expect_definition({"causal", 4, 2, 8, causal_mask(offsets), 24}, DType::bf16, result);
        expect_definition({"all", 2, 2, 16, full_mask(offsets)}, DType::bf16, result);
    }
    expect_definition({"heads of 128", 4, 1, 128, causal_mask(kOffsets), 640}, DType::bf16, DType::bf16);
    // The same shapes with the other mask, then with other row widths: each needs a plan of its class.
    expect_definition({"causal, as all", 2, 2, 16, causal_mask(offsets)}, DType::bf16, DType::bf16);
    expect_definition({"causal, other rows", 2, 2, 16, causal_mask(offsets), 8}, DType::bf16, DType::bf16);
    // Sequences with different numbers of queries and keys.
    const VarlenMask other{{0, 2, 2, 9}, {0, 131, 131, 135}, {131, 131, 4, 4, 4, 4, 4, 4, 4}};
    expect_definition({"other keys", 2, 1, 32, other, 32}, DType::bf16, DType::bf16);
}

TEST_F(Attention, HandlesEmptyInputs) {
    expect_definition({"no rows", 2, 1, 8, {{0}, {0}, {}}});
    expect_definition({"empty sequences", 2, 1, 8, {{0, 0, 0}, {0, 0, 0}, {}}});
    expect_definition({"no keys", 2, 1, 8, {{0, 3}, {0, 0}, {0, 0, 0}}});
    expect_definition({"no queries", 2, 1, 8, {{0, 0}, {0, 70}, {}}});
    expect_definition({"no key allowed", 2, 1, 8, {{0, 3}, {0, 70}, {0, 0, 0}}});
}

TEST_F(Attention, HandlesScoresWhoseExponentialsOverflow) {
    for (const auto type : {DType::f64, DType::f32})
        expect_definition({"scores of thousands", 2, 1, 16, causal_mask(kOffsets), 0, 0, 30}, type, type);
}

/// cuDNN 9.26 has problems with such log-sum-exps where the last block of keys is half full (cudnn-frontend,
/// pull request 628).
TEST_F(Attention, HandlesLogSumExpsBelowTheSmallestExponential) {
    const std::vector<std::int32_t> offsets = {0, 192, 256, 576};
    for (const VarlenMask& mask : {full_mask(offsets), causal_mask(offsets)})
        for (const DType result : {DType::bf16, DType::f32})
            expect_definition({"sums near -100", 2, 1, 64, mask, 0, 0, 1, 4}, DType::bf16, result);
}

class AttentionThreads : public Attention {};

TEST_F(AttentionThreads, DoNotChangeTheResult) {
    if (testing_support::kOnGpu) GTEST_SKIP() << "a GPU has no threads of the host";
    const VarlenMask mask = causal_mask(kOffsets);
    const Tensor q = random(DType::f32, {171, 64}), k = random(DType::f32, {171, 32}),
                 qkv = random(DType::f32, {171, 128}), dout = random(DType::f32, {171, 64});
    std::vector<Numbers> results;
    for (const int threads : {1, 2}) {
        const auto backend = backend::make_cpu(threads);
        const Tensor out = filled(DType::f32, {171, 64}), lse = filled(DType::f32, {171, 4}),
                     dq = filled(DType::f32, {171, 64}), dk = filled(DType::f32, {171, 32}),
                     dqkv = filled(DType::f32, {171, 128});
        attention(*backend, q, k, qkv, mask, out, lse, scratch_);
        attention_backward(*backend, dout, out, q, k, qkv, lse, mask, dq, dk, dqkv, scratch_);
        Numbers all;
        for (const Tensor& t : {out, dq, dk, dqkv})
            for (const double value : values(t)) all.push_back(value);
        results.push_back(std::move(all));
    }
    EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace maestro::ops
