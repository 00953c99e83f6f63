// Tables of attention that are kept for several calls.
#include "ops/attention/tables.hpp"

#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& lengths) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
    return offsets;
}

class AttentionTablesTest : public testing_support::Tensors {
protected:
    static constexpr std::int64_t kHeads = 2, kDim = 8, kWidth = kHeads * kDim;
    struct Call {
        Tensor q, k, values, out, lse, dout, dq, dk, dvalues;
    };
    Call call(std::int64_t rows) {
        const auto tensor = [&](double scale) { return random(DType::bf16, {rows, kWidth}, scale); };
        return {tensor(1), tensor(1), tensor(1), tensor(0), filled(DType::f32, {rows, kHeads}),
                tensor(1), tensor(0), tensor(0), tensor(0)};
    }
    /// Returns the results of both passes.
    std::vector<std::vector<double>> run(const Call& c, const VarlenMask& mask, AttentionTables* tables) {
        attention(b_, c.q, c.k, c.values, mask, c.out, c.lse, scratch_, tables);
        attention_backward(b_, c.dout, c.out, c.q, c.k, c.values, c.lse, mask, c.dq, c.dk, c.dvalues,
                           scratch_, tables);
        return {values(c.out), values(c.lse), values(c.dq), values(c.dk), values(c.dvalues)};
    }
};

TEST_F(AttentionTablesTest, AreMadeOnceForAllCallsOfAPass) {
    const VarlenMask causal = causal_mask(offsets_of({70, 3, 130})), full = full_mask(offsets_of({200, 3}));
    AttentionTables tables;
    tables.reserve(b_, 2, {203, 203, 3}, true, arena_);
    for (int layer = 0; layer < 3; ++layer) {
        const Call c = call(203);
        EXPECT_EQ(run(c, causal, &tables), run(c, causal, nullptr));
        EXPECT_EQ(run(c, full, &tables), run(c, full, nullptr));
        EXPECT_EQ(tables.size(), 4U) << "two masks, forward and backward";
    }
    tables.reserve(b_, 1, {203, 203, 2}, true, arena_);
    EXPECT_EQ(tables.size(), 0U);
    const Call c = call(203);
    EXPECT_EQ(run(c, full, &tables), run(c, full, nullptr));
}

/// The memory plan relies on it: whatever the lengths, by each implementation.
TEST(AttentionTablesMemory, SufficesForAllLengths) {
    using Lengths = std::vector<std::int32_t>;
    std::vector<Lengths> cases{{1}, {5000}, Lengths(700, 1), Lengths(100, 17), Lengths(9, 129), {}};
    for (const std::int32_t length : {129, 257, 513, 1025}) {
        Lengths& lengths = cases.emplace_back();
        for (int i = 0; i < 20; ++i) lengths.insert(lengths.end(), i % 3, 1), lengths.push_back(length);
        Lengths& nearly_full = cases.emplace_back();
        for (int i = 0; i < 20; ++i)
            nearly_full.insert(nearly_full.end(), 15, 1), nearly_full.push_back(length);
    }
    for (const int architecture : {0, 80, 90}) {
        const auto meta = backend::make_meta({}, {1, false, {.architecture = architecture}});
        for (const Lengths& lengths : cases)
            for (const DType type : {DType::bf16, DType::f64}) {
                const VarlenMask mask = causal_mask(offsets_of(lengths));
                const std::int64_t rows = mask.cu_seqlens_q.back(), sequences = std::ssize(lengths);
                const Tensor x(nullptr, type, {rows, 16}), lse(nullptr, DType::f32, {rows, 2});
                AttentionTensors t{.q = x, .k = x, .values = x, .out = x, .lse = lse};
                for (const bool backward : {false, true}) {
                    if (backward) t.dout = t.dq = t.dk = t.dvalues = x;
                    std::int64_t words = 0;
                    make_mask_tables(*meta, t, mask, sequences, [&](const std::vector<std::int32_t>& list) {
                        words += static_cast<std::int64_t>(list.size() + 3) / 4 * 4;
                        return Tensor(nullptr, DType::i32, {static_cast<std::int64_t>(list.size())});
                    });
                    EXPECT_LE(words, most_table_words({rows, rows, sequences}));
                    EXPECT_LE(words, most_table_words({rows, rows, rows}));
                    EXPECT_EQ(words > 0, rows > 0);
                }
            }
    }
}

/// A slice of a ring with a mask for each of 16 slices needs little memory for one long sequence.
TEST(AttentionTablesMemory, IsSmallForFewSequences) {
    EXPECT_LE(4 * most_table_words({65536, 65536, 1}), 10 * 65536);
    EXPECT_EQ(most_table_words({1000, 1000, 1000}), 14 * 2000 + 256);
}

}  // namespace
}  // namespace maestro::ops
