// GELU and SwiGLU against their formulas in double, for any size, alignment and magnitude.
#include "ops/gelu.hpp"
#include "ops/swiglu.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::rounding;

constexpr GeluForm kForms[] = {GeluForm::tanh, GeluForm::exact};

class Activations : public testing_support::Views {
protected:
    /// Calls body(type, rows, columns, shift, what) for sizes and alignments at which vectorized code has a
    /// remainder.
    template <class Body>
    void over_sizes(Body&& body) {
        for (const DType type : {DType::f64, DType::f32, DType::bf16})
            for (const std::int64_t columns : {0, 1, 8, 31, 33, 127, 1000, 4097})
                for (const std::int64_t rows : {0, 1, 5})
                    for (const std::int64_t shift : {0, 1, 8}) {
                        const std::string what =
                            fmt::format("{} {} x {} from {}", name_of(type), rows, columns, shift);
                        body(type, rows, columns, shift, what);
                        expect_kept_around(what);
                    }
    }
};

const double kRoot = std::sqrt(2 / std::acos(-1.0));
double cdf_of(double x) {
    return 0.5 * std::erfc(-x / std::sqrt(2.0));
}
double gelu_of(double x, GeluForm form) {
    if (form == GeluForm::exact) return x * cdf_of(x);
    return 0.5 * x * (1 + std::tanh(kRoot * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x, GeluForm form) {
    if (form == GeluForm::exact) return cdf_of(x) + x * kRoot / 2 * std::exp(-x * x / 2);
    const double t = std::tanh(kRoot * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot * (1 + 3 * 0.044715 * x * x);
}
double sigmoid_of(double x) {
    return 1 / (1 + std::exp(-x));
}

TEST_F(Activations, GeluWorksForAnySizeAndAlignment) {
    over_sizes([&](DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift,
                   const std::string& what) {
        const Tensor x = view(type, rows, columns, shift, normal(rows * columns, 3)),
                     dy = view(type, rows, columns, shift, normal(rows * columns)),
                     y = view(type, rows, columns, shift), dx = view(type, rows, columns, shift);
        const Tensor elsewhere = view(type, rows, columns, shift + 1);
        const auto of = values(x), gradient = values(dy);
        for (const GeluForm form : kForms) {
            gelu(b_, x, y, form);
            gelu(b_, x, elsewhere, form);
            gelu_backward(b_, dy, x, dx, form);
            std::vector<double> expected, slopes;
            for (const double v : of) expected.push_back(gelu_of(v, form));
            for (std::size_t i = 0; i < of.size(); ++i)
                slopes.push_back(gradient[i] * gelu_slope(of[i], form));
            const std::string which = what + (form == GeluForm::exact ? ", exact" : ", tanh");
            expect_each(y, expected, rounding(type), which);
            expect_each(dx, slopes, rounding(type), which + ", backward");
            EXPECT_EQ(values(y), values(elsewhere)) << which;
        }
    });
}

// torch.nn.functional.gelu of PyTorch 2.15 in float64, and its gradient.
TEST_F(Activations, ExactGeluEqualsPyTorch) {
    const Tensor x = view(DType::f64, 1, 6, 0, {-6, -2, -0.5, 0, 0.75, 3}), y = view(DType::f64, 1, 6, 0),
                 dy = view(DType::f64, 1, 6, 0, 1), dx = view(DType::f64, 1, 6, 0);
    gelu(b_, x, y, GeluForm::exact);
    gelu_backward(b_, dy, x, dx, GeluForm::exact);
    expect_each(y,
                {-5.91952586947997e-09, -0.0455002638963584, -0.154268769362993, 0, 0.580029485717349,
                 2.99595030590511},
                1e-14, "gelu");
    expect_each(dx,
                {-3.54687094540264e-08, -0.0852318010781969, 0.132504875343837, 0.5, 0.999225721739235,
                 1.01194564720418},
                1e-14, "gradient");
}

TEST_F(Activations, SwigluWorksForAnySizeAndAlignment) {
    over_sizes(
        [&](DType type, std::int64_t rows, std::int64_t width, std::int64_t shift, const std::string& what) {
            const Tensor x = view(type, rows, 2 * width, shift, normal(rows * width * 2, 3)),
                         dy = view(type, rows, width, shift, normal(rows * width)),
                         y = view(type, rows, width, shift), dx = view(type, rows, 2 * width, shift);
            const Tensor elsewhere = view(type, rows, width, shift + 1);
            swiglu(b_, x, y);
            swiglu(b_, x, elsewhere);
            swiglu_backward(b_, dy, x, dx);
            const auto of = values(x), gradient = values(dy);
            std::vector<double> expected, slopes(of.size());
            for (std::int64_t r = 0; r < rows; ++r)
                for (std::int64_t c = 0; c < width; ++c) {
                    const auto at = static_cast<std::size_t>(r * 2 * width + c), up = at + width;
                    const double s = sigmoid_of(of[at]), d = gradient[expected.size()];
                    expected.push_back(of[at] * s * of[up]);
                    slopes[at] = d * of[up] * (s + of[at] * s * (1 - s));
                    slopes[up] = d * of[at] * s;
                }
            expect_each(y, expected, rounding(type), what);
            expect_each(dx, slopes, rounding(type), what + ", backward");
            EXPECT_EQ(values(y), values(elsewhere)) << what;
        });
}

TEST_F(Activations, ReachTheirLimitsForLargeInputs) {
    const std::vector<double> far{-1e30, -1e4, -95, -88, -30, 30, 88, 95, 1e4, 1e30};
    const auto size = static_cast<std::int64_t>(far.size());
    std::vector<double> positive, ones(far.size(), 1), gate_up = far;
    for (const double v : far) positive.push_back(v > 0 ? static_cast<double>(static_cast<float>(v)) : 0);
    gate_up.insert(gate_up.end(), ones.begin(), ones.end());
    const Tensor x = view(DType::f32, 1, size, 0, far), y = view(DType::f32, 1, size, 0),
                 pairs = view(DType::f32, 1, 2 * size, 0, gate_up), dy = view(DType::f32, 1, size, 0, ones),
                 d = view(DType::f32, 1, 2 * size, 0);
    for (const GeluForm form : kForms) {
        gelu(b_, x, y, form);
        expect_each(y, positive, 1e-6, "gelu");
    }
    std::vector<double> slopes;
    for (const double v : far) slopes.push_back(v > 0 ? 1 : 0);
    gelu_backward(b_, dy, x, y, GeluForm::exact);
    expect_each(y, slopes, 1e-6, "exact gelu, backward");
    swiglu(b_, pairs, y);
    expect_each(y, positive, 1e-6, "swiglu");
    swiglu_backward(b_, dy, pairs, d);
    slopes.insert(slopes.end(), positive.begin(), positive.end());
    expect_each(d, slopes, 1e-6, "swiglu, backward");
}

TEST_F(Activations, KeepNaN) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        const Tensor x = view(type, 1, 2, 0, {kPoison, 1}), y = view(type, 1, 2, 0, {0, 0}),
                     gated = view(type, 1, 1, 0, {0});
        swiglu(b_, x, gated);
        EXPECT_TRUE(std::isnan(get(gated, 0)));
        for (const GeluForm form : kForms) {
            gelu(b_, x, y, form);
            EXPECT_TRUE(std::isnan(get(y, 0)) && !std::isnan(get(y, 1)));
        }
    }
}

}  // namespace
}  // namespace maestro::ops
