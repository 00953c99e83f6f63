// Losses against plain sums in long double, including logits whose exponentials overflow.
#include <gmock/gmock.h>

#include "base/error.hpp"

#include "ops/cross_entropy.hpp"
#include "ops/distillation.hpp"
#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

class Losses : public testing_support::Tensors {
protected:
    static constexpr std::int64_t kRows = 7, kWords = 37;
    const std::vector<std::int32_t> targets_{0, 36, 5, 5, 12, 30, 1};
    const std::vector<float> weights_{1, 10, 0, 0.5f, 1, 2, 1};

    double cross_entropy_of(const Tensor& logits, double scale) {
        const Tensor loss = filled(DType::f64, {1});
        cross_entropy(b_, logits, list(targets_), list(weights_), scale, {{0, kWords}, {}}, loss, scratch_);
        return get(loss, 0);
    }
    double distillation_of(const Tensor& student, const Tensor& teacher, double alpha, double temperature,
                           double scale) {
        const Tensor loss = filled(DType::f64, {3});
        distillation(b_, student, teacher, list(targets_), list(weights_), {1 - alpha, alpha, temperature},
                     scale, {{0, kWords}, {}}, loss, scratch_);
        return get(loss, 0);
    }
    /// Returns the log softmax of row r of `logits`, softened by the temperature.
    static std::vector<long double> log_softmax(const std::vector<double>& logits, std::int64_t r,
                                                long double temperature) {
        std::vector<long double> row;
        for (std::int64_t c = 0; c < kWords; ++c)
            row.push_back(static_cast<long double>(logits[static_cast<std::size_t>(r * kWords + c)]) /
                          temperature);
        const long double top = *std::max_element(row.begin(), row.end());
        long double sum = 0;
        for (const long double x : row) sum += std::exp(x - top);
        for (long double& x : row) x -= top + std::log(sum);
        return row;
    }
};

TEST_F(Losses, CrossEntropyMatchesItsFormula) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const double size : {1.0, 1e4}) {
            const Tensor logits = random(type, {kRows, kWords}, size);
            const auto before = values(logits);
            long double expected = 0;
            std::vector<double> gradient;
            for (std::int64_t r = 0; r < kRows; ++r) {
                const auto row = log_softmax(before, r, 1);
                const auto weight = static_cast<long double>(weights_[static_cast<std::size_t>(r)]) * 0.25L;
                const auto target = static_cast<std::size_t>(targets_[static_cast<std::size_t>(r)]);
                if (weight > 0) expected -= weight * row[target];
                for (std::size_t c = 0; c < row.size(); ++c)
                    gradient.push_back(
                        static_cast<double>(weight * (std::exp(row[c]) - (c == target ? 1.0L : 0.0L))));
            }
            const double loss = cross_entropy_of(logits, 0.25);
            // Of bf16 only the gradient is rounded, once.
            const double tolerance = type == DType::f64 ? 1e-13 : 1e-6;
            EXPECT_NEAR(loss, static_cast<double>(expected), tolerance * static_cast<double>(expected));
            expect_near(logits, gradient, type == DType::bf16 ? 0x1p-8 : tolerance, "gradient");
            for (std::int64_t c = 0; c < kWords; ++c) EXPECT_EQ(get(logits, 2 * kWords + c), 0) << "weight 0";
        }
}

TEST_F(Losses, DistillationMatchesItsFormula) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const auto& [alpha, temperature] : {std::pair{0.5, 1.0}, {1.0, 2.0}, {0.3, 4.0}, {0.0, 3.0}}) {
            const Tensor student = random(type, {kRows, kWords}, 2),
                         teacher = random(type, {kRows, kWords}, 2);
            const auto s = values(student), t = values(teacher);
            long double expected = 0;
            std::vector<double> gradient;
            for (std::int64_t r = 0; r < kRows; ++r) {
                const auto plain = log_softmax(s, r, 1), soft = log_softmax(s, r, temperature),
                           wanted = log_softmax(t, r, temperature);
                const auto weight = static_cast<long double>(weights_[static_cast<std::size_t>(r)]) * 0.1L;
                const auto target = static_cast<std::size_t>(targets_[static_cast<std::size_t>(r)]);
                long double divergence = 0;
                for (std::size_t c = 0; c < plain.size(); ++c) {
                    divergence += std::exp(wanted[c]) * (wanted[c] - soft[c]);
                    gradient.push_back(static_cast<double>(
                        weight * ((1 - alpha) * (std::exp(plain[c]) - (c == target ? 1.0L : 0.0L)) +
                                  alpha * temperature * (std::exp(soft[c]) - std::exp(wanted[c])))));
                }
                expected +=
                    weight * (-(1 - alpha) * plain[target] + alpha * temperature * temperature * divergence);
            }
            const double loss = distillation_of(student, teacher, alpha, temperature, 0.1);
            const double tolerance = type == DType::f64 ? 1e-12 : 2e-6;
            EXPECT_NEAR(loss, static_cast<double>(expected), tolerance * static_cast<double>(expected));
            expect_near(student, gradient, type == DType::bf16 ? 0x1p-8 : tolerance, "gradient");
        }
}

TEST_F(Losses, DivergenceFromAnEqualTeacherIsZero) {
    const Tensor student = random(DType::f32, {kRows, kWords}),
                 teacher = as_type(DType::f32, student, {kRows, kWords});
    EXPECT_NEAR(distillation_of(student, teacher, 1, 2, 1), 0, 1e-5);
    for (const double value : values(student)) EXPECT_NEAR(value, 0, 1e-6);
}

TEST_F(Losses, ATargetBeyondTheVocabularyIsAnError) {
    if (testing_support::kOnGpu) GTEST_SKIP() << "the host cannot check targets on a GPU";
    const Tensor logits = random(DType::f32, {2, 5});
    EXPECT_THROW(cross_entropy(b_, logits, list<std::int32_t>({4, 5}), list<float>({1, 1}), 1, {{0, 5}, {}},
                               filled(DType::f64, {1}), scratch_),
                 Error);
}

TEST_F(Losses, ArgmaxTakesTheFirstOfEqualLogits) {
    const Tensor logits = filled(DType::f32, {3, 5}, -1);
    for (const std::int64_t i : {1, 3, 5 + 4}) set(logits, i, 2);
    const Tensor found = list<std::int32_t>({7, 7, 7}), largest = filled(DType::f32, {3});
    argmax_rows(b_, logits, found, largest);
    std::vector<std::int32_t> best(3);
    b_.download(found, best.data());
    EXPECT_THAT(best, testing::ElementsAre(1, 4, 0));
    EXPECT_THAT(values(largest), testing::ElementsAre(2, 2, -1));
}

}  // namespace
}  // namespace maestro::ops
