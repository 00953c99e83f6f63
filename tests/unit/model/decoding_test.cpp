// Greedy decoding with a cache of keys and values, against passes of the whole model over the whole sequence,
// and the cache's attention against its definition.
#include <gmock/gmock.h>

#include <set>

#include "ops/dispatch.hpp"
#include "support/plain_attention.hpp"
#include "unit/model/answering_model.hpp"

namespace maestro::model::test {
namespace {

constexpr std::size_t kTokens = 12;

struct Form {
    const char* name;
    std::function<void(ModelSpec&)> change;
};

class Decoding : public testing::TestWithParam<Form> {};

TEST_P(Decoding, GivesWhatTheWholeModelPredictsForTheGrowingSequence) {
    const auto backend = testing_support::make_device(1);
    AnsweringModel model(*backend, DType::f32, single_rank_mesh(), GetParam().change);
    std::set<std::int32_t> tokens;
    for (const Question& question : questions()) {
        const std::vector<std::int32_t> answer = model.decode(question, kTokens);
        EXPECT_EQ(answer, model.predict(question, kTokens));
        tokens.insert(answer.begin(), answer.end());
        // By the arg-max of an evaluation, which counts only answers to pictures.
        const Result result = model.evaluate(question, answer, 1);
        EXPECT_EQ(result.answers, question.sizes.empty() ? 0 : 1);
        EXPECT_EQ(result.exact, result.answers);
    }
    EXPECT_GE(tokens.size(), 5u) << "the answers repeat few tokens: rows could be mixed up unnoticed";
}

INSTANTIATE_TEST_SUITE_P(
    Forms, Decoding,
    testing::Values(Form{"Qwen3", {}}, Form{"OtherForms", use_other_forms}, Form{"TwoMixers", use_two_mixers},
                    Form{"Untied", [](ModelSpec& spec) { spec.tie_embeddings = false; }}),
    [](const auto& each) { return each.param.name; });

TEST(DecodingMemory, IsThePlannedOne) {
    const auto backend = testing_support::make_device(2);
    AnsweringModel model(*backend, DType::f32);
    const Question question{{1, 2, 8}};
    model.decode(question, AnsweringModel::kRows - question.tokens.size() + 1);
    EXPECT_EQ(model.sequence().layers.length(), AnsweringModel::kRows);
    EXPECT_EQ(model.used(), model.planned());
    // Another row would not fit.
    EXPECT_THROW(model.decode(question, AnsweringModel::kRows), Error);
}

class CachedAttention : public testing::TestWithParam<DType> {};

TEST_P(CachedAttention, AttendsToTheRowsOfItsLayer) {
    constexpr std::int64_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 8, kRows = 70, kPrompt = 67;
    const DType type = GetParam(), wide = ops::accumulate_type(type);
    const auto backend = testing_support::make_device(2);
    backend::Arena arena(*backend, std::size_t{4} << 20);
    const auto filled = [&](std::int64_t rows, std::int64_t width, double phase) {
        const Tensor t = arena.allocate(type, {rows, width});
        std::vector<double> values;
        for (std::int64_t i = 0; i < t.size(); ++i)
            values.push_back(
                std::sin(0.7 * static_cast<double>(i) + 0.01 * static_cast<double>(i * i) + phase));
        testing_support::write_elements(*backend, t, values);
        return t;
    };
    constexpr std::int64_t kWidth = kKvHeads * kDim, kQkv = kHeads * kDim + 2 * kWidth;
    KvCache cache(*backend, kLayers, kWidth, type, kRows, arena);
    std::vector<testing_support::PlainAttention> expected(kLayers);
    for (auto& plain : expected) {
        plain.heads = kHeads;
        plain.kv_heads = kKvHeads;
        plain.dim = kDim;
    }
    const auto write = [&](std::int64_t rows, double phase) {
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
            const Tensor k = filled(rows, kWidth, phase + static_cast<double>(layer)),
                         qkv = filled(rows, kQkv, 2 * phase + static_cast<double>(layer));
            cache.write(layer, k, qkv);
            auto& plain = expected[static_cast<std::size_t>(layer)];
            const auto keys = testing_support::read_elements(*backend, k),
                       all = testing_support::read_elements(*backend, qkv);
            plain.k.insert(plain.k.end(), keys.begin(), keys.end());
            for (std::int64_t row = 0; row < rows; ++row)
                plain.values.insert(plain.values.end(), all.begin() + (row + 1) * kQkv - kWidth,
                                    all.begin() + (row + 1) * kQkv);
        }
    };
    write(kPrompt, 0.3);
    cache.add_rows(kPrompt);
    for (std::int64_t row = kPrompt; row < kRows; ++row) {
        const backend::ArenaScope scope(arena);
        cache.begin_row(arena);
        write(1, 0.1 * static_cast<double>(row));
        const Tensor q = filled(1, kHeads * kDim, static_cast<double>(row)),
                     out = arena.allocate(type, {1, kHeads * kDim}), lse = arena.allocate(wide, {1, kHeads});
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
            cache.attend(layer, q, out, lse, arena);
            auto& plain = expected[static_cast<std::size_t>(layer)];
            const auto keys = static_cast<std::int32_t>(row + 1);
            plain.mask = {{0, 1}, {0, keys}, {keys}};
            plain.q = testing_support::read_elements(*backend, q);
            plain.forward();
            EXPECT_THAT(testing_support::read_elements(*backend, out),
                        testing::Pointwise(testing::DoubleNear(type == DType::bf16 ? 1e-2 : 1e-5), plain.out))
                << "row " << row << ", layer " << layer;
        }
        cache.add_rows(1);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, CachedAttention, testing::Values(DType::f32, DType::f64, DType::bf16),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace maestro::model::test
