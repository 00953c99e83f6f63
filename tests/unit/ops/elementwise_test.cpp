// Activations and sums against their formulas, and the optimizer against a loop in double.
#include "ops/elementwise.hpp"

#include "ops/adamw.hpp"
#include "ops/gelu.hpp"
#include "ops/linear.hpp"
#include "ops/reduce.hpp"
#include "ops/rms_norm.hpp"
#include "ops/swiglu.hpp"
#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

using testing_support::rounding;

class Elementwise : public testing_support::Tensors {};

TEST_F(Elementwise, ActivationsEqualTheirFormulas) {
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
        gelu(b_, x, y);
        expect_near(y, gelu_of, rounding(type), "gelu");
        swiglu(b_, x, gated);
        expect_near(gated, swiglu_of, rounding(type), "swiglu");
    }
}

TEST_F(Elementwise, ActivationsSurviveHugeInputs) {
    const Tensor x = filled(DType::f32, {1, 4}, 0), y = filled(DType::f32, {1, 4}),
                 gated = filled(DType::f32, {1, 2});
    for (std::int64_t i = 0; i < 4; ++i) set(x, i, i % 2 == 0 ? 1e30 : -1e30);
    gelu(b_, x, y);
    EXPECT_EQ(get(y, 0), static_cast<double>(1e30f));
    EXPECT_EQ(get(y, 1), 0);
    set(x, 2, 1);
    set(x, 3, 1);
    swiglu(b_, x, gated);
    EXPECT_EQ(get(gated, 0), static_cast<double>(1e30f));
    EXPECT_NEAR(get(gated, 1), 0, 1e-6);
}

TEST_F(Elementwise, BackwardsInFloatAndBf16EqualThoseInDouble) {
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
            rms_norm_backward(b_, gradient, in, weight, rstd, dx, dw, false);
            gelu_backward(b_, gradient, in, dg);
            swiglu_backward(b_, narrow, in, ds);
            bias_backward(b_, gradient, bias);
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
        EXPECT_EQ(get(z, i), static_cast<double>(static_cast<float>(bf16(y.as<float>()[i]))));
    zero(b_, y);
    for (const double value : values(y)) EXPECT_EQ(value, 0);
}

TEST_F(Elementwise, ReducesInOrderAndRoundsOnce) {
    constexpr std::int64_t kSize = 70'001;  // enough for all threads, the last block cut
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        std::vector<Tensor> parts;
        for (int p = 0; p < 3; ++p) parts.push_back(random(type, {kSize}, 5));
        set(parts[2], 7, std::nan(""));
        const Tensor sum = filled(type, {kSize}), one = filled(type, {1});
        reduce(b_, parts, Reduction::sum, sum);
        std::vector<double> largest;
        for (std::int64_t i = 0; i < kSize; ++i) {
            const double a = get(parts[0], i), b = get(parts[1], i), c = get(parts[2], i);
            largest.push_back(std::max({a, b, c}));
            if (i == 7) continue;
            set(one, 0,
                type == DType::f64 ? a + b + c
                                   : static_cast<double>(static_cast<float>(a) + static_cast<float>(b) +
                                                         static_cast<float>(c)));
            ASSERT_EQ(get(sum, i), get(one, 0)) << i;
        }
        reduce(b_, parts, Reduction::max, parts[1]);  // into one of them
        EXPECT_TRUE(std::isnan(get(sum, 7)) && std::isnan(get(parts[1], 7)));
        for (std::int64_t i = 0; i < kSize; ++i) {
            if (i == 7) continue;
            ASSERT_EQ(get(parts[1], i), largest[static_cast<std::size_t>(i)]) << i;
        }
    }
}

TEST_F(Elementwise, AdamWEqualsALoopInDouble) {
    constexpr std::int64_t kSize = 1000;
    const Tensor w = random(DType::f32, {kSize}), m = filled(DType::f32, {kSize}),
                 v = filled(DType::f32, {kSize});
    auto weight = values(w), first = values(m), second = values(v);
    for (int step = 1; step <= 5; ++step) {
        const AdamW settings{.learning_rate = 0.01 * step,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .step = step,
                             .gradient_scale = 1.0 / step};
        const Tensor g = random(DType::f32, {kSize});
        adamw(b_, w, g, m, v, settings);
        for (std::size_t i = 0; i < kSize; ++i) {
            const double x = get(g, static_cast<std::int64_t>(i)) / step;
            first[i] = 0.9 * first[i] + 0.1 * x;
            second[i] = 0.95 * second[i] + 0.05 * x * x;
            weight[i] -= 0.01 * step *
                         (first[i] / (1 - std::pow(0.9, step)) /
                              (std::sqrt(second[i] / (1 - std::pow(0.95, step))) + 1e-8) +
                          0.1 * weight[i]);
        }
    }
    expect_near(w, weight, 1e-6, "weights");
    expect_near(m, first, 1e-6, "first moments");
    expect_near(v, second, 1e-6, "second moments");
}

TEST_F(Elementwise, TheNormIsSummedInDoubleWhateverTheThreads) {
    const Tensor t = random(DType::f32, {100'003}, 1e-3);
    long double sum = 0;
    for (const double value : values(t)) sum += static_cast<long double>(value) * value;
    const auto two = backend::make_cpu(2);
    const double found = squared_norm(b_, t);
    EXPECT_NEAR(found, static_cast<double>(sum), 1e-13 * static_cast<double>(sum));
    EXPECT_EQ(squared_norm(*two, t), found);
}

}  // namespace
}  // namespace maestro::ops
