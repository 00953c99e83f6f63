// RMSNorm against plain loops, and the properties that make rotary positions relative.
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"
#include "support/views.hpp"

#include <fmt/format.h>

#include <array>

namespace maestro::ops {
namespace {

using testing_support::rounding;

class Norms : public testing_support::Views {
protected:
    using Numbers = std::vector<double>;
    struct Expected {
        Numbers y, rstd, dx, dw;
    };
    /// Returns output and gradients for rows of w.size() elements.
    static Expected of(const Numbers& x, const Numbers& w, const Numbers& dy, double eps) {
        const std::size_t columns = w.size();
        Expected e{x, {}, x, Numbers(columns, 0.0)};
        for (std::size_t row = 0; row < x.size(); row += columns) {
            double squares = 0, dot = 0;
            for (std::size_t c = 0; c < columns; ++c) {
                squares += x[row + c] * x[row + c];
                dot += dy[row + c] * w[c] * x[row + c];
            }
            const auto size = static_cast<double>(columns), scale = 1 / std::sqrt(squares / size + eps);
            e.rstd.push_back(scale);
            for (std::size_t c = 0; c < columns; ++c) {
                e.y[row + c] = x[row + c] * scale * w[c];
                e.dx[row + c] = dy[row + c] * w[c] * scale - x[row + c] * dot * scale * scale * scale / size;
                e.dw[c] += dy[row + c] * x[row + c] * scale;
            }
        }
        return e;
    }
};

TEST_F(Norms, RmsNormWorksForAnySizeAndAlignment) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const std::int64_t columns : {1, 8, 31, 130, 1000, 4098, 4104})
            for (const std::int64_t rows : {0, 1, columns < 1000 ? 130 : 11})
                for (const std::int64_t shift : {0, 1}) {
                    const std::string what =
                        fmt::format("{} {} x {} from {}", name_of(type), rows, columns, shift);
                    const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
                    const std::int64_t size = rows * columns;
                    const Tensor x = view(type, rows, columns, shift, normal(size, 3)),
                                 w = view(type, 1, columns, shift, normal(columns)),
                                 dy = view(type, rows, columns, shift, normal(size)),
                                 y = view(type, rows, columns, shift), dx = view(type, rows, columns, shift),
                                 more = view(type, rows, columns, shift, normal(size)),
                                 rstd = view(sums, rows, 1, shift),
                                 dw = view(sums, 1, columns, shift, normal(columns));
                    const Numbers before = values(more), weights = values(dw);
                    rms_norm(b_, x, w, y, rstd, 1e-3);
                    rms_norm_backward(b_, dy, x, w, rstd, dx, {}, false, scratch_);
                    rms_norm_backward(b_, dy, x, w, rstd, more, dw, true, scratch_);
                    const Expected e = of(values(x), values(w), values(dy), 1e-3);
                    expect_each(y, e.y, rounding(type), what + ", y");
                    expect_each(rstd, e.rstd, rounding(sums), what + ", rstd");
                    expect_each(dx, e.dx, rounding(type), what + ", dx");
                    expect_each(more, sum(before, e.dx), rounding(type), what + ", dx more");
                    expect_each(dw, sum(weights, e.dw), 10 * rounding(sums), what + ", dw");
                    expect_kept_around(what);
                }
}

class Rotary : public testing_support::Tensors {
protected:
    static constexpr std::int64_t kDim = 16;
    /// Returns the dot product of two vectors, rotated by two positions.
    double dot(const std::vector<std::int32_t>& y, const std::vector<std::int32_t>& x, const Tensor& qkv) {
        const Tensor cos = filled(DType::f64, {2, kDim / 2}), sin = filled(DType::f64, {2, kDim / 2});
        if (y.empty())
            fill_rotary(b_, std::array{list(x)}, rotary_1d(kDim, 10000), cos, sin);
        else
            fill_rotary(b_, std::array{list(y), list(x)}, rotary_2d(kDim, 10000), cos, sin);
        const Tensor q = filled(DType::f64, {2, kDim}), k = filled(DType::f64, {2, kDim}),
                     rstd = filled(DType::f64, {2, 2});
        head_norm_rotary(b_, qkv, {}, {}, cos, sin, q, k, rstd, 1e-6);
        double sum = 0;
        for (std::int64_t d = 0; d < kDim; ++d) sum += get(q, d) * get(k, kDim + d);
        return sum;
    }
};

TEST_F(Rotary, DotProductsDependOnTheDistanceOnly) {
    const Tensor qkv = random(DType::f64, {2, 3 * kDim});
    const double near = dot({}, {3, 5}, qkv);
    EXPECT_NEAR(dot({}, {103, 105}, qkv), near, 1e-9);
    EXPECT_GT(std::abs(dot({}, {3, 6}, qkv) - near), 1e-3);
    const double here = dot({1, 4}, {7, 2}, qkv);
    EXPECT_NEAR(dot({11, 14}, {57, 52}, qkv), here, 1e-9);
    EXPECT_GT(std::abs(dot({1, 5}, {7, 2}, qkv) - here), 1e-3);
    EXPECT_GT(std::abs(dot({1, 4}, {7, 3}, qkv) - here), 1e-3);
}

TEST_F(Rotary, RotatesPairsOfTheTwoHalves) {
    const std::vector<std::int32_t> positions{0, 1, 250};
    const Tensor cos = filled(DType::f64, {3, 4}), sin = filled(DType::f64, {3, 4});
    fill_rotary(b_, std::array{list(positions)}, rotary_1d(8, 100), cos, sin);
    const Tensor qkv = random(DType::f64, {3, 24}), q = filled(DType::f64, {3, 8}),
                 k = filled(DType::f64, {3, 8}), rstd = filled(DType::f64, {3, 2});
    head_norm_rotary(b_, qkv, {}, {}, cos, sin, q, k, rstd, 1e-6);
    for (std::int64_t t = 0; t < 3; ++t)
        for (std::int64_t j = 0; j < 4; ++j) {
            const double angle =
                positions[static_cast<std::size_t>(t)] * std::pow(100.0, -2.0 * static_cast<double>(j) / 8);
            const double low = get(qkv, t * 24 + j), high = get(qkv, t * 24 + j + 4);
            EXPECT_NEAR(get(q, t * 8 + j), low * std::cos(angle) - high * std::sin(angle), 1e-12);
            EXPECT_NEAR(get(q, t * 8 + j + 4), high * std::cos(angle) + low * std::sin(angle), 1e-12);
        }
}

TEST_F(Rotary, HeadNormComesBeforeTheRotation) {
    for (const DType type : {DType::f32, DType::bf16}) {
        const Tensor qkv = random(type, {1, 4 * 8}), w = random(type, {8}), v = random(type, {8});
        const DType statistics = DType::f32;
        const Tensor cos = filled(statistics, {1, 4}, 1), sin = filled(statistics, {1, 4}, 0);
        const Tensor q = filled(type, {1, 16}), k = filled(type, {1, 8}), rstd = filled(statistics, {1, 3});
        head_norm_rotary(b_, qkv, w, v, cos, sin, q, k, rstd, 0);
        std::vector<double> expected;
        for (std::int64_t head = 0; head < 3; ++head) {
            double sum = 0;
            for (std::int64_t d = 0; d < 8; ++d) sum += std::pow(get(qkv, head * 8 + d), 2);
            for (std::int64_t d = 0; d < 8; ++d)
                expected.push_back(get(qkv, head * 8 + d) / std::sqrt(sum / 8) * get(head < 2 ? w : v, d));
        }
        expect_near(q, {expected.begin(), expected.begin() + 16}, rounding(type), name_of(type));
        expect_near(k, {expected.begin() + 16, expected.end()}, rounding(type), name_of(type));
    }
}

}  // namespace
}  // namespace maestro::ops
