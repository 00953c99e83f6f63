// Sums of the rows that come back from experts, and the weighted SwiGLU, against plain loops and finite
// differences.
#include "ops/expert_rows.hpp"

#include <numeric>

#include "base/error.hpp"
#include "ops/rows.hpp"
#include "support/finite_difference.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::expect_gradient;
using testing_support::kOnGpu;
using testing_support::kTypes;
using testing_support::rounded;
using testing_support::rounding;

DType sums_of(DType type) {
    return type == DType::f64 ? DType::f64 : DType::f32;
}

class ExpertRows : public testing_support::Views {
protected:
    /// Positions below `rows`, of which some are negative.
    std::vector<std::int32_t> some_positions(std::int64_t count, std::int64_t rows) {
        std::vector<std::int32_t> found;
        for (const double x : normal(count))
            found.push_back(x < -0.8 || rows == 0
                                ? -1 - static_cast<std::int32_t>(x * x)
                                : static_cast<std::int32_t>(x * x * 1e4) % static_cast<std::int32_t>(rows));
        return found;
    }
    double dot(const Tensor& a, const Tensor& b) {
        const std::vector<double> x = values(a), y = values(b);
        return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
    }
};

// The sums are exactly those of a loop, so they are taken in the same order and rounded once.
TEST_F(ExpertRows, AreAddedInTheOrderOfExperts) {
    struct Shape {
        std::int64_t rows, k, sent, columns, shift;
    };
    for (const DType type : kTypes)
        for (const Shape c : {Shape{7, 3, 20, 5, 0}, Shape{4, 8, 32, 256, 0}, Shape{4, 8, 32, 256, 1},
                              Shape{3, 8, 9, 1000, 0}, Shape{33, 2, 60, 33, 0}, Shape{5, 1, 5, 8, 8},
                              Shape{2, 4, 0, 16, 0}, Shape{0, 4, 3, 16, 0}, Shape{1, 40, 64, 4097, 0}})
            for (const bool accumulate : {false, true}) {
                const std::string what =
                    fmt::format("{} of {} rows, {} x {} from {}, {}{}", c.k, c.sent, c.rows, c.columns,
                                c.shift, name_of(type), accumulate ? ", added" : "");
                const DType sums = sums_of(type);
                const auto at = some_positions(c.rows * c.k, c.sent);
                const std::vector<double> before = normal(c.rows * c.columns);
                const Tensor rows = view(type, c.sent, c.columns, c.shift, normal(c.sent * c.columns, 3)),
                             sum = accumulate ? view(type, c.rows, c.columns, c.shift, before)
                                              : view(type, c.rows, c.columns, c.shift);
                const auto from = values(rows);
                std::vector<double> expected;
                for (std::int64_t i = 0; i < sum.size(); ++i) {
                    double total = 0;
                    for (std::int64_t j = 0; j < c.k; ++j) {
                        const std::int64_t row = at[static_cast<std::size_t>(i / c.columns * c.k + j)];
                        if (row < 0) continue;
                        total = rounded(
                            sums, total + from[static_cast<std::size_t>(row * c.columns + i % c.columns)]);
                    }
                    if (accumulate)
                        total = rounded(sums, total + rounded(type, before[static_cast<std::size_t>(i)]));
                    expected.push_back(rounded(type, total));
                }
                sum_rows(b_, rows, list(at).reshape({c.rows, c.k}), sum, accumulate);
                expect_equal(sum, expected, what);
                expect_kept_around(what);
            }
}

TEST_F(ExpertRows, NegativePositionsAddNothing) {
    const Tensor rows = filled(DType::bf16, {9, 6}, kPoison).slice(7, 9),
                 sum = filled(DType::bf16, {2, 6}, 5),
                 position = list(std::vector<std::int32_t>{-1, -1, -7, -2'000'000'000}).reshape({2, 2});
    sum_rows(b_, rows, position, sum, true);
    expect_equal(sum, std::vector<double>(12, 5), "added");
    sum_rows(b_, rows, position, sum, false);
    expect_equal(sum, std::vector<double>(12, 0), "replaced");
}

TEST_F(ExpertRows, SumsAreTheGradientOfGatheredRows) {
    const Tensor x = random(DType::f64, {4, 3}), probe = random(DType::f64, {6, 3}),
                 y = filled(DType::f64, {6, 3}), d = filled(DType::f64, {4, 3}, kPoison);
    const Tensor source = list(std::vector<std::int32_t>{2, 0, 1, 2, 0, 3}),
                 position = list(std::vector<std::int32_t>{1, 4, 2, -1, 0, 3, 5, -1}).reshape({4, 2});
    sum_rows(b_, probe, position, d, false);
    expect_gradient(b_, "rows", x, d, [&] {
        gather_rows(b_, x, source, y);
        return dot(y, probe);
    });
}

TEST_F(ExpertRows, WeightedSwigluWorksForAnySizeAndAlignment) {
    for (const DType type : kTypes)
        for (const std::int64_t width : {1, 8, 31, 33, 256, 1000, 4097})
            for (const std::int64_t rows : {0, 1, 5})
                for (const std::int64_t shift : {0, 1, 8}) {
                    const std::string what =
                        fmt::format("{} {} x {} from {}", name_of(type), rows, width, shift);
                    const DType sums = sums_of(type);
                    const Tensor x = view(type, rows, 2 * width, shift, normal(rows * width * 2, 3)),
                                 dy = normal_view(type, rows, width, shift),
                                 weight = normal_view(sums, rows, 1, shift),
                                 y = view(type, rows, width, shift), dx = view(type, rows, 2 * width, shift),
                                 d_weight = view(sums, rows, 1, shift);
                    weighted_swiglu(b_, x, weight, y);
                    weighted_swiglu_backward(b_, dy, x, weight, dx, d_weight);
                    const auto of = values(x), gradient = values(dy), factor = values(weight);
                    std::vector<double> expected, slopes(of.size()), sum(static_cast<std::size_t>(rows)),
                        magnitude(sum.size());
                    for (std::size_t i = 0; i < gradient.size(); ++i) {
                        const std::size_t columns = static_cast<std::size_t>(width), r = i / columns,
                                          at = i + r * columns, up = at + columns;
                        const double s = 1 / (1 + std::exp(-of[at])), d = gradient[i] * factor[r],
                                     active = of[at] * s * of[up];
                        expected.push_back(factor[r] * active);
                        slopes[at] = d * of[up] * (s + of[at] * s * (1 - s));
                        slopes[up] = d * of[at] * s;
                        sum[r] += gradient[i] * active;
                        magnitude[r] += std::abs(gradient[i] * active);
                    }
                    expect_each(y, expected, rounding(type), what);
                    expect_each(dx, slopes, rounding(type), what + ", backward");
                    const auto found = values(d_weight);
                    for (std::size_t r = 0; r < sum.size(); ++r)
                        ASSERT_NEAR(found[r], sum[r], rounding(sums) * (1 + magnitude[r]))
                            << what << ", weight of row " << r;
                    expect_kept_around(what);
                }
}

TEST_F(ExpertRows, WeightedSwigluPassesGradientsToItsWeights) {
    const Tensor gate_up = random(DType::f64, {4, 10}), weight = random(DType::f64, {4}),
                 probe = random(DType::f64, {4, 5}), y = filled(DType::f64, {4, 5}),
                 d = filled(DType::f64, {4, 10}, kPoison), d_weight = filled(DType::f64, {4}, kPoison);
    const auto loss = [&] {
        weighted_swiglu(b_, gate_up, weight, y);
        return dot(y, probe);
    };
    weighted_swiglu_backward(b_, probe, gate_up, weight, d, d_weight);
    expect_gradient(b_, "gate and up", gate_up, d, loss);
    expect_gradient(b_, "weight", weight, d_weight, loss);
}

TEST_F(ExpertRows, RefuseWhatDoesNotFit) {
    const Tensor rows = random(DType::bf16, {3, 8}), sum = filled(DType::bf16, {2, 8}),
                 position = list(std::vector<std::int32_t>{0, 1, 2, 0}).reshape({2, 2});
    EXPECT_THROW(sum_rows(b_, rows, position, filled(DType::bf16, {2, 9}), false), Error);
    EXPECT_THROW(sum_rows(b_, rows, position, filled(DType::bf16, {3, 8}), false), Error);
    EXPECT_THROW(sum_rows(b_, rows, position, filled(DType::f32, {2, 8}), false), Error);
    const Tensor y = filled(DType::bf16, {3, 4}), weight = filled(DType::f32, {3}, 1);
    EXPECT_THROW(weighted_swiglu(b_, rows, filled(DType::bf16, {3}), y), Error);
    EXPECT_THROW(weighted_swiglu(b_, rows, filled(DType::f32, {2}), y), Error);
    EXPECT_THROW(weighted_swiglu(b_, rows, weight, filled(DType::bf16, {3, 8})), Error);
    EXPECT_THROW(weighted_swiglu_backward(b_, y, rows, weight, rows, filled(DType::f32, {2})), Error);
    if (kOnGpu) return;  // a GPU does not check indices
    const Tensor beyond = list(std::vector<std::int32_t>{0, 1, 3, 0}).reshape({2, 2});
    EXPECT_THROW(sum_rows(b_, rows, beyond, sum, false), Error);
}

}  // namespace
}  // namespace maestro::ops
