// Activations, sums, casts and fills against their formulas.
#include "ops/elementwise.hpp"

#include "ops/gelu.hpp"
#include "ops/linear.hpp"
#include "ops/rms_norm.hpp"
#include "ops/swiglu.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::rounded;
using testing_support::rounding;

class Elementwise : public testing_support::Views {};

TEST_F(Elementwise, ActivationsMatchTheirFormulas) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        const Tensor x = random(type, {9, 70}, 4), y = filled(type, {9, 70}), gated = filled(type, {9, 35});
        std::vector<double> gelu_of, swiglu_of;
        for (const double v : values(x))
            gelu_of.push_back(0.5 * v *
                              (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v))));
        for (std::int64_t r = 0; r < 9; ++r)
            for (std::int64_t c = 0; c < 35; ++c) {
                const double gate = get(x, r * 70 + c);
                swiglu_of.push_back(gate / (1 + std::exp(-gate)) * get(x, r * 70 + 35 + c));
            }
        gelu(b_, x, y, GeluForm::tanh);
        expect_near(y, gelu_of, rounding(type), "gelu");
        swiglu(b_, x, gated);
        expect_near(gated, swiglu_of, rounding(type), "swiglu");
    }
}

TEST_F(Elementwise, ActivationsHandleHugeInputs) {
    const Tensor x = filled(DType::f32, {1, 4}, 0), y = filled(DType::f32, {1, 4}),
                 gated = filled(DType::f32, {1, 2});
    for (std::int64_t i = 0; i < 4; ++i) set(x, i, i % 2 == 0 ? 1e30 : -1e30);
    gelu(b_, x, y, GeluForm::tanh);
    EXPECT_EQ(get(y, 0), static_cast<double>(1e30f));
    EXPECT_EQ(get(y, 1), 0);
    set(x, 2, 1);
    set(x, 3, 1);
    swiglu(b_, x, gated);
    EXPECT_EQ(get(gated, 0), static_cast<double>(1e30f));
    EXPECT_NEAR(get(gated, 1), 0, 1e-6);
}

TEST_F(Elementwise, BackwardPassesInFloatAndBf16MatchDouble) {
    for (const DType type : {DType::f32, DType::bf16}) {
        const Tensor x = random(type, {20, 48}), w = random(type, {48}), dy = random(type, {20, 48}),
                     half = random(type, {20, 24});
        const auto run = [&](DType t, const Tensor& in, const Tensor& weight, const Tensor& gradient,
                             const Tensor& narrow) {
            const DType sums = t == DType::f64 ? DType::f64 : DType::f32;
            const Tensor y = filled(t, {20, 48}), rstd = filled(sums, {20}), dx = filled(t, {20, 48}),
                         dw = filled(sums, {48}), dg = filled(t, {20, 48}), ds = filled(t, {20, 48}),
                         bias = filled(sums, {48});
            rms_norm(b_, in, weight, y, rstd, 1e-6);
            rms_norm_backward(b_, gradient, in, weight, rstd, dx, dw, false, scratch_);
            gelu_backward(b_, gradient, in, dg, GeluForm::tanh);
            swiglu_backward(b_, narrow, in, ds);
            bias_backward(b_, gradient, bias, scratch_);
            return std::vector<Tensor>{dx, dw, dg, ds, bias};
        };
        const auto found = run(type, x, w, dy, half),
                   expected = run(DType::f64, as_type(DType::f64, x, {20, 48}), as_type(DType::f64, w, {48}),
                                  as_type(DType::f64, dy, {20, 48}), as_type(DType::f64, half, {20, 24}));
        for (std::size_t i = 0; i < found.size(); ++i)
            expect_near(found[i], values(expected[i]), rounding(type),
                        std::string(name_of(type)) + std::to_string(i));
    }
}

TEST_F(Elementwise, SumsCastsAndFills) {
    const Tensor x = random(DType::bf16, {100}), y = random(DType::f32, {100}),
                 z = filled(DType::bf16, {100});
    auto expected = values(y);
    for (std::size_t i = 0; i < 100; ++i) expected[i] += get(x, static_cast<std::int64_t>(i));
    add(b_, x, y);
    expect_near(y, expected, 1e-7, "add");
    convert(b_, y, z);
    for (std::int64_t i = 0; i < 100; ++i)
        EXPECT_EQ(get(z, i), static_cast<double>(static_cast<float>(bf16(static_cast<float>(get(y, i))))));
    zero(b_, y);
    for (const double value : values(y)) EXPECT_EQ(value, 0);
}

TEST_F(Elementwise, SumsAndCastsWorkForAnyTypeSizeAndAlignment) {
    const std::vector<DType> types{DType::f64, DType::f32, DType::bf16};
    for (const DType from : types)
        for (const DType to : types)
            for (const std::int64_t size : {0, 1, 3, 4, 8, 31, 33, 127, 1000, 4097})
                for (const std::int64_t shift : {0, 1, 2, 4, 8})
                    for (const std::int64_t other : {0, 3}) {  // the target may be aligned differently
                        const std::string what = fmt::format("{} to {} [{}] from {} to {}", name_of(from),
                                                             name_of(to), size, shift, shift + other);
                        const Tensor x = view(from, 1, size, shift, normal(size)),
                                     y = view(to, 1, size, shift + other, normal(size)),
                                     cast = view(to, 1, size, shift + other);
                        const std::vector<double> more = values(x), before = values(y);
                        std::vector<double> sums, casts;
                        for (std::size_t i = 0; i < more.size(); ++i) {
                            // In the target's accumulation type, to which x is rounded first.
                            const auto narrow = static_cast<float>(before[i]) + static_cast<float>(more[i]);
                            sums.push_back(rounded(
                                to, to == DType::f64 ? before[i] + more[i] : static_cast<double>(narrow)));
                            casts.push_back(rounded(to, more[i]));
                        }
                        add(b_, x, y);
                        convert(b_, x, cast);
                        EXPECT_EQ(values(y), sums) << what;
                        EXPECT_EQ(values(cast), casts) << what;
                        EXPECT_EQ(values(x), more) << what;
                        expect_kept_around(what);
                    }
}

TEST_F(Elementwise, CopiesAndFillsWorkForAnyType) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const std::int64_t size : {0, 1, 33, 4097}) {
            const Tensor x = view(type, 1, size, 1, normal(size)), y = view(type, 1, size, 2);
            const std::vector<double> expected = values(x);
            copy(b_, x, y);
            EXPECT_EQ(values(y), expected);
            zero(b_, x);
            EXPECT_EQ(values(x), std::vector<double>(expected.size(), 0));
            expect_kept_around(name_of(type));
        }
    const Tensor pixels = list<std::uint8_t>({1, 2, 3, 4, 5}), copied = list<std::uint8_t>({6, 7, 8, 9, 10});
    copy(b_, pixels.slice(1, 4), copied.slice(2, 5));
    zero(b_, pixels.slice(3, 5));
    std::vector<std::uint8_t> found(5), kept(5);
    b_.download(copied, found.data());
    b_.download(pixels, kept.data());
    EXPECT_EQ(found, (std::vector<std::uint8_t>{6, 7, 2, 3, 4}));
    EXPECT_EQ(kept, (std::vector<std::uint8_t>{1, 2, 3, 0, 0}));
}

TEST_F(Elementwise, CastsRoundToNearestEvenAndKeepNaN) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    // A value halfway between two bf16 numbers goes to the even one; values beyond the largest become
    // infinite; NaN remains NaN.
    const Tensor x = view(DType::f32, 1, 6, 0, {1.00390625, 1.01171875, 3.4e38, -kInf, kPoison, -0.0}),
                 y = view(DType::bf16, 1, 6, 0, std::vector<double>(6, 5));
    convert(b_, x, y);
    EXPECT_EQ(get(y, 0), 1);
    EXPECT_EQ(get(y, 1), 1.015625);
    EXPECT_EQ(get(y, 2), kInf);
    EXPECT_EQ(get(y, 3), -kInf);
    EXPECT_TRUE(std::isnan(get(y, 4)));
    EXPECT_TRUE(get(y, 5) == 0 && std::signbit(get(y, 5)));
}

TEST_F(Elementwise, DifferentSizesAreErrors) {
    const Tensor x = filled(DType::f32, {5}), y = filled(DType::f32, {4});
    EXPECT_THROW(add(b_, x, y), Error);
    EXPECT_THROW(convert(b_, x, y), Error);
    EXPECT_THROW(copy(b_, x, y), Error);
}

}  // namespace
}  // namespace maestro::ops
