// LayerNorm against its formula in long double, for any size and alignment and for rows with a large mean.
#include "ops/layer_norm.hpp"
#include "support/views.hpp"

#include <fmt/format.h>

namespace maestro::ops {
namespace {

using testing_support::kTypes;
using testing_support::rounding;

class LayerNorm : public testing_support::Views {
protected:
    using Numbers = std::vector<double>;
    struct Expected {
        Numbers y, mean, rstd, dx, dw, dbias;
    };
    /// Returns output, statistics and gradients for rows of w.size() elements.
    static Expected of(const Numbers& x, const Numbers& w, const Numbers& bias, const Numbers& dy,
                       double eps) {
        const std::size_t columns = w.size();
        const auto size = static_cast<long double>(columns);
        Expected e{x, {}, {}, x, Numbers(columns, 0.0), Numbers(columns, 0.0)};
        for (std::size_t row = 0; row < x.size(); row += columns) {
            long double mean = 0, variance = 0, sum = 0, dot = 0;
            for (std::size_t c = 0; c < columns; ++c) mean += x[row + c] / size;
            for (std::size_t c = 0; c < columns; ++c)
                variance += (x[row + c] - mean) * (x[row + c] - mean) / size;
            const long double scale = 1 / std::sqrt(variance + eps);
            e.mean.push_back(static_cast<double>(mean));
            e.rstd.push_back(static_cast<double>(scale));
            for (std::size_t c = 0; c < columns; ++c) {
                const long double n = (x[row + c] - mean) * scale, g = dy[row + c] * w[c];
                e.y[row + c] = static_cast<double>(n * w[c] + bias[c]);
                e.dw[c] += static_cast<double>(dy[row + c] * n);
                e.dbias[c] += dy[row + c];
                sum += g / size;
                dot += g * n / size;
            }
            for (std::size_t c = 0; c < columns; ++c)
                e.dx[row + c] = static_cast<double>(
                    scale * (dy[row + c] * w[c] - sum - (x[row + c] - mean) * scale * dot));
        }
        return e;
    }
};

TEST_F(LayerNorm, WorksForAnySizeAndAlignment) {
    for (const DType type : kTypes)
        for (const std::int64_t columns : {1, 8, 31, 130, 1000, 4098, 4104})
            for (const std::int64_t rows : {0, 1, columns < 1000 ? 130 : 11})
                for (const std::int64_t shift : {0, 1}) {
                    const std::string what =
                        fmt::format("{} {} x {} from {}", name_of(type), rows, columns, shift);
                    const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
                    const std::int64_t size = rows * columns;
                    Numbers input = normal(size, 3);
                    for (double& value : input) value += 2;
                    const Tensor x = view(type, rows, columns, shift, input),
                                 w = view(type, 1, columns, shift, normal(columns)),
                                 bias = view(type, 1, columns, shift, normal(columns)),
                                 dy = view(type, rows, columns, shift, normal(size)),
                                 y = view(type, rows, columns, shift), dx = view(type, rows, columns, shift),
                                 more = view(type, rows, columns, shift, normal(size)),
                                 mean = view(sums, rows, 1, shift), rstd = view(sums, rows, 1, shift),
                                 dw = view(sums, 1, columns, shift, normal(columns)),
                                 dbias = view(sums, 1, columns, shift, normal(columns));
                    const Expected e = of(values(x), values(w), values(bias), values(dy), 1e-3);
                    const Numbers before = values(more), weights = values(dw), biases = values(dbias);
                    layer_norm(b_, x, w, bias, y, mean, rstd, 1e-3);
                    layer_norm_backward(b_, dy, x, w, mean, rstd, dx, {}, {}, false, scratch_);
                    layer_norm_backward(b_, dy, x, w, mean, rstd, more, dw, dbias, true, scratch_);
                    const double margin = 3 * rounding(type);
                    expect_each(y, e.y, rounding(type), what + ", y");
                    expect_each(mean, e.mean, rounding(sums), what + ", mean");
                    expect_each(rstd, e.rstd, rounding(sums), what + ", rstd");
                    expect_each(dx, e.dx, margin, what + ", dx");
                    expect_each(more, sum(before, e.dx), margin, what + ", dx more");
                    expect_each(dw, sum(weights, e.dw), 10 * rounding(sums), what + ", dw");
                    expect_each(dbias, sum(biases, e.dbias), 10 * rounding(sums), what + ", dbias");
                    expect_kept_around(what);
                }
}

// torch.nn.functional.layer_norm of PyTorch 2.15 in float64, and its gradients.
TEST_F(LayerNorm, EqualsPyTorch) {
    constexpr DType kType = DType::f64;
    const Tensor x = view(kType, 2, 3, 0, {1, 2, 4, -3, 0.5, 0.25}), w = view(kType, 1, 3, 0, {0.5, -1, 2}),
                 bias = view(kType, 1, 3, 0, {0.25, 0, -1}),
                 dy = view(kType, 2, 3, 0, {1, -2, 0.5, 0.25, 3, -1}), y = view(kType, 2, 3, 0),
                 mean = view(kType, 2, 1, 0), rstd = view(kType, 2, 1, 0), dx = view(kType, 2, 3, 0),
                 dw = view(kType, 1, 3, 0, 0.0), dbias = view(kType, 1, 3, 0, 0.0);
    layer_norm(b_, x, w, bias, y, mean, rstd, 1e-3);
    layer_norm_backward(b_, dy, x, w, mean, rstd, dx, dw, dbias, false, scratch_);
    expect_each(y,
                {-0.284350755819474, 0.267175377909737, 1.67175377909737, -0.455517527526117,
                 -0.783908363917908, 0.254253382268653},
                1e-14, "y");
    expect_each(dx,
                {-0.458063975061465, 0.687010139963844, -0.228946164902379, -0.0181949365274865,
                 -0.242484396969389, 0.260679333496875},
                1e-14, "dx");
    expect_each(dw, {-1.42146027540201, 2.8860758475732, 0.0408117536400155}, 1e-14, "dw");
    expect_each(dbias, {1.25, 1, -0.5}, 1e-14, "dbias");
}

// The variance is far below the rounding error of the mean of squares.
TEST_F(LayerNorm, KeepsItsPrecisionForALargeMean) {
    for (const auto& [type, far, tolerance] :
         {std::tuple{DType::f32, 3000.0, 1e-3}, std::tuple{DType::f64, 1e8, 1e-7}})
        for (const std::int64_t columns : {40, 5000}) {
            const std::string what = fmt::format("{} of {}", columns, name_of(type));
            Numbers input = normal(3 * columns);
            for (double& value : input) value += far;
            const Tensor x = view(type, 3, columns, 0, input), w = view(type, 1, columns, 0, 1),
                         bias = view(type, 1, columns, 0, 0.0), y = view(type, 3, columns, 0),
                         dy = normal_view(type, 3, columns, 0), dx = view(type, 3, columns, 0),
                         mean = view(type, 3, 1, 0), rstd = view(type, 3, 1, 0);
            layer_norm(b_, x, w, bias, y, mean, rstd, 0);
            layer_norm_backward(b_, dy, x, w, mean, rstd, dx, {}, {}, false, scratch_);
            const Expected e = of(values(x), values(w), values(bias), values(dy), 0);
            expect_each(rstd, e.rstd, tolerance / 10, what + ", rstd");
            expect_each(y, e.y, tolerance, what + ", y");
            expect_each(dx, e.dx, tolerance, what + ", dx");
            expect_kept_around(what);
        }
}

TEST_F(LayerNorm, WorksInPlace) {
    for (const DType type : kTypes)
        for (const std::int64_t columns : {40, 10'000}) {
            const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
            const Numbers input = normal(20 * columns), gradient = normal(20 * columns);
            const Tensor x = view(type, 20, columns, 0, input), w = normal_view(type, 1, columns, 0),
                         bias = normal_view(type, 1, columns, 0), y = view(type, 20, columns, 0, input),
                         dy = view(type, 20, columns, 0, gradient), mean = view(sums, 20, 1, 0),
                         rstd = view(sums, 20, 1, 0), dw = view(sums, 1, columns, 0, 0.0),
                         dbias = view(sums, 1, columns, 0, 0.0);
            const Expected e = of(values(x), values(w), values(bias), values(dy), 1e-6);
            layer_norm(b_, y, w, bias, y, mean, rstd, 1e-6);
            layer_norm_backward(b_, dy, x, w, mean, rstd, dy, dw, dbias, false, scratch_);
            expect_each(y, e.y, rounding(type), "y");
            expect_each(dy, e.dx, 3 * rounding(type), "dx");
            expect_each(dw, e.dw, 10 * rounding(sums), "dw");
            expect_each(dbias, e.dbias, 10 * rounding(sums), "dbias");
            expect_kept_around("in place");
        }
}

TEST_F(LayerNorm, RefusesTensorsThatDoNotFit) {
    const Tensor x = filled(DType::f32, {2, 8}), w = filled(DType::f32, {8}), stats = filled(DType::f32, {2}),
                 narrow = filled(DType::f32, {7});
    EXPECT_THROW(layer_norm(b_, x, narrow, w, x, stats, stats, 1e-6), Error);
    EXPECT_THROW(layer_norm(b_, x, w, narrow, x, stats, stats, 1e-6), Error);
    EXPECT_THROW(layer_norm(b_, x, w, w, x, narrow, stats, 1e-6), Error);
    // Gradients of weight and bias are both wanted, or neither.
    EXPECT_THROW(layer_norm_backward(b_, x, x, w, stats, stats, x, w, {}, false, scratch_), Error);
}

}  // namespace
}  // namespace maestro::ops
