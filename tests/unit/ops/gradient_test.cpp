// The backward pass of every operation against central differences, in double.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "ops/attention/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/distillation.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/gelu.hpp"
#include "ops/layer_norm.hpp"
#include "ops/linear.hpp"
#include "ops/low_rank.hpp"
#include "ops/position_table.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"
#include "ops/rows.hpp"
#include "ops/swiglu.hpp"
#include "support/finite_difference.hpp"
#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

using testing_support::expect_gradient;

class Gradient : public testing_support::Tensors {
protected:
    Tensor random(std::initializer_list<std::int64_t> shape) { return Tensors::random(DType::f64, shape); }
    Tensor zeros(std::initializer_list<std::int64_t> shape) { return filled(DType::f64, shape); }
    double dot(const Tensor& a, const Tensor& b) {
        const std::vector<double> x = values(a), y = values(b);
        return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
    }
};

TEST_F(Gradient, Linear) {
    const Tensor x = random({5, 7}), w = random({4, 7}), bias = random({4}), probe = random({5, 4}),
                 y = zeros({5, 4});
    const Tensor other = zeros({5, 4});
    const auto loss = [&] {
        linear(b_, x, w, other, bias);
        linear_accumulate(b_, x, w, y, other);
        return dot(y, probe);
    };
    const Tensor dx = zeros({5, 7}), dw = zeros({4, 7}), dbias = zeros({4});
    linear_backward_input(b_, probe, w, dx, false);
    linear_backward_input(b_, probe, w, dx, true);
    linear_backward_weight(b_, probe, x, dw);
    linear_backward_weight(b_, probe, x, dw);
    bias_backward(b_, probe, dbias, scratch_);
    expect_gradient(b_, "x", x, dx, loss);
    expect_gradient(b_, "w", w, dw, loss);
    expect_gradient(b_, "bias", bias, dbias, loss);
}

// Two matrices of a layer with 9 outputs: the columns from 1 on and those from 5 on.
TEST_F(Gradient, LowRankAddition) {
    constexpr double kScale = 1.25;
    const Tensor x = random({5, 7}), a = random({4, 7}), first = random({3, 2}), second = random({4, 2}),
                 probe = random({5, 9}), inner = zeros({5, 4}), y = zeros({5, 9});
    const auto forward = [&](const Tensor& target) {
        low_rank_inner(b_, x, a, kScale, inner);
        low_rank_add(b_, {inner, 0}, first, {target, 1});
        low_rank_add(b_, {inner, 2}, second, {target, 5});
    };
    const auto loss = [&] {
        zero(b_, y);
        forward(y);
        return dot(y, probe);
    };
    const Tensor d_inner = zeros({5, 4}), dx = zeros({5, 7}), da = zeros({4, 7}), d_first = zeros({3, 2}),
                 d_second = zeros({4, 2});
    low_rank_backward_inner(b_, {probe, 1}, first, kScale, {d_inner, 0});
    low_rank_backward_inner(b_, {probe, 5}, second, kScale, {d_inner, 2});
    linear_backward_input(b_, d_inner, a, dx, false);
    linear_backward_weight(b_, d_inner, x, da);
    low_rank_inner(b_, x, a, kScale, inner);
    low_rank_backward_weight(b_, {probe, 1}, {inner, 0}, d_first);
    low_rank_backward_weight(b_, {probe, 5}, {inner, 2}, d_second);
    expect_gradient(b_, "x", x, dx, loss);
    expect_gradient(b_, "a", a, da, loss);
    expect_gradient(b_, "first", first, d_first, loss);
    expect_gradient(b_, "second", second, d_second, loss);
    loss();
    const std::vector<double> all = values(y);
    for (std::size_t i = 0; i < all.size(); ++i)  // of the other columns
        EXPECT_EQ(all[i] == 0, i % 9 == 0 || i % 9 == 4) << i;
}

TEST_F(Gradient, RmsNorm) {
    const Tensor x = random({6, 9}), w = random({9}), probe = random({6, 9}), y = zeros({6, 9}),
                 rstd = zeros({6});
    const auto loss = [&] {
        rms_norm(b_, x, w, y, rstd, 1e-6);
        return dot(y, probe);
    };
    loss();
    const Tensor dx = zeros({6, 9}), dw = zeros({9});
    rms_norm_backward(b_, probe, x, w, rstd, dx, dw, false, scratch_);
    expect_gradient(b_, "x", x, dx, loss);
    expect_gradient(b_, "w", w, dw, loss);
    const Tensor twice = zeros({6, 9});
    for (int i = 0; i < 2; ++i) rms_norm_backward(b_, probe, x, w, rstd, twice, {}, true, scratch_);
    for (std::int64_t i = 0; i < dx.size(); ++i) EXPECT_DOUBLE_EQ(get(twice, i), 2 * get(dx, i));
}

TEST_F(Gradient, LayerNorm) {
    const Tensor x = random({6, 9}), w = random({9}), bias = random({9}), probe = random({6, 9}),
                 y = zeros({6, 9}), mean = zeros({6}), rstd = zeros({6});
    const auto loss = [&] {
        layer_norm(b_, x, w, bias, y, mean, rstd, 1e-3);
        return dot(y, probe);
    };
    loss();
    const Tensor dx = zeros({6, 9}), dw = zeros({9}), dbias = zeros({9});
    layer_norm_backward(b_, probe, x, w, mean, rstd, dx, dw, dbias, false, scratch_);
    expect_gradient(b_, "x", x, dx, loss);
    expect_gradient(b_, "w", w, dw, loss);
    expect_gradient(b_, "bias", bias, dbias, loss);
}

TEST_F(Gradient, Activations) {
    const Tensor gate_up = random({4, 10}), probe = random({4, 5}), y = zeros({4, 5}), d = zeros({4, 10});
    swiglu_backward(b_, probe, gate_up, d);
    expect_gradient(b_, "swiglu", gate_up, d, [&] {
        swiglu(b_, gate_up, y);
        return dot(y, probe);
    });
    const Tensor x = random({4, 5}), dx = zeros({4, 5});
    for (const GeluForm form : {GeluForm::tanh, GeluForm::exact}) {
        gelu_backward(b_, probe, x, dx, form);
        expect_gradient(b_, form == GeluForm::tanh ? "gelu, tanh" : "gelu, exact", x, dx, [&] {
            gelu(b_, x, y, form);
            return dot(y, probe);
        });
    }
}

TEST_F(Gradient, HeadNormAndRotation) {
    constexpr std::int64_t kRows = 5, kHeads = 4, kKeys = 2, kDim = 6;
    const Tensor qkv = random({kRows, (kHeads + 2 * kKeys) * kDim}), q_norm = random({kDim}),
                 k_norm = random({kDim});
    const Tensor cos = zeros({kRows, kDim / 2}), sin = zeros({kRows, kDim / 2});
    const std::vector<std::int32_t> positions{0, 1, 2, 0, 7};
    fill_rotary(b_, std::array{list(positions)}, rotary_1d(kDim, 10000), cos, sin);
    const Tensor q = zeros({kRows, kHeads * kDim}), k = zeros({kRows, kKeys * kDim}),
                 rstd = zeros({kRows, kHeads + kKeys});
    const Tensor probe_q = random({kRows, kHeads * kDim}), probe_k = random({kRows, kKeys * kDim});
    for (const bool norm : {true, false}) {
        const Tensor qw = norm ? q_norm : Tensor{}, kw = norm ? k_norm : Tensor{};
        const auto loss = [&] {
            head_norm_rotary(b_, qkv, qw, kw, cos, sin, q, k, rstd, 1e-6);
            return dot(q, probe_q) + dot(k, probe_k);
        };
        loss();
        const Tensor d = zeros({kRows, (kHeads + 2 * kKeys) * kDim}), dqw = zeros({kDim}),
                     dkw = zeros({kDim});
        head_norm_rotary_backward(b_, probe_q, probe_k, qkv, qw, kw, cos, sin, rstd, d, norm ? dqw : Tensor{},
                                  norm ? dkw : Tensor{}, scratch_);
        expect_gradient(b_, "qkv", qkv, d, loss);
        if (!norm) continue;
        expect_gradient(b_, "q norm", q_norm, dqw, loss);
        expect_gradient(b_, "k norm", k_norm, dkw, loss);
    }
}

TEST_F(Gradient, PackedAttention) {
    // The simulated GPU takes a second for some hundred differences.
    const bool few = testing_support::kOnGpu;
    constexpr std::int64_t kDim = 3;
    const std::int64_t heads = few ? 2 : 4, kv_heads = heads / 2;
    const std::vector<std::int32_t> offsets{0, 1, 1, 6, few ? 40 : 76};  // 1, 0, 5 and more than a block
    const std::int64_t rows = offsets.back();
    const Tensor q = random({rows, heads * kDim}), k = random({rows, kv_heads * kDim}),
                 qkv = random({rows, (heads + 2 * kv_heads) * kDim});
    const Tensor out = zeros({rows, heads * kDim}), lse = zeros({rows, heads}),
                 probe = random({rows, heads * kDim});
    for (const bool causal : {true, false}) {
        if (few && !causal) continue;
        const VarlenMask mask = causal ? causal_mask(offsets) : full_mask(offsets);
        const auto loss = [&] {
            attention(b_, q, k, qkv, mask, out, lse, scratch_);
            return dot(out, probe);
        };
        loss();
        const Tensor dq = zeros({rows, heads * kDim}), dk = zeros({rows, kv_heads * kDim}),
                     dqkv = zeros({rows, (heads + 2 * kv_heads) * kDim});
        attention_backward(b_, probe, out, q, k, qkv, lse, mask, dq, dk, dqkv, scratch_);
        expect_gradient(b_, "q", q, dq, loss);
        expect_gradient(b_, "k", k, dk, loss);
        expect_gradient(b_, "values", qkv, dqkv, loss);
        // The output against the definition, for one row of the last sequence.
        const std::int64_t row = rows - 3, head = heads - 1, first = 6, last = causal ? row : rows - 1,
                           key = head / 2;
        std::vector<double> weights, expected(kDim, 0.0);
        double sum = 0;
        for (std::int64_t t = first; t <= last; ++t) {
            double score = 0;
            for (std::int64_t c = 0; c < kDim; ++c)
                score += get(q, (row * heads + head) * kDim + c) * get(k, (t * kv_heads + key) * kDim + c);
            weights.push_back(std::exp(score / std::sqrt(3.0)));
            sum += weights.back();
        }
        loss();
        for (std::int64_t c = 0; c < kDim; ++c) {
            for (std::int64_t t = first; t <= last; ++t)
                expected[static_cast<std::size_t>(c)] +=
                    weights[static_cast<std::size_t>(t - first)] / sum *
                    get(qkv, t * qkv.columns() + (heads + kv_heads + key) * kDim + c);
            EXPECT_NEAR(get(out, (row * heads + head) * kDim + c), expected[static_cast<std::size_t>(c)],
                        1e-12);
        }
    }
}

TEST_F(Gradient, EmbeddingAndRows) {
    const Tensor ids = list<std::int32_t>({2, -1, 0, 2}), places = list<std::int32_t>({3, 0});
    const Tensor table = random({3, 4}), y = zeros({4, 4}), probe = random({4, 4}), d = zeros({3, 4});
    embedding_backward(b_, ids, probe, d, scratch_);
    expect_gradient(b_, "table", table, d, [&] {
        embedding(b_, ids, table, y);
        return dot(y, probe);
    });
    const Tensor few = random({2, 4}), d_few = zeros({2, 4});
    gather_rows(b_, probe, places, d_few);
    expect_gradient(b_, "rows", few, d_few, [&] {
        zero(b_, y);
        scatter_rows(b_, few, places, y);
        return dot(y, probe);
    });
}

TEST_F(Gradient, PositionTable) {
    const std::vector<GridPosition> patches{{0, 0, 2, 4}, {1, 1, 2, 4}, {1, 2, 5, 3}, {4, 0, 5, 3}};
    const InterpolatedRows rows = interpolate_rows(patches, 3);
    const Tensor index = list(rows.index), weight = list(rows.weight), table = random({9, 4}),
                 y = zeros({4, 4}), probe = random({4, 4}), d = zeros({9, 4});
    position_embedding_backward(b_, index, weight, probe, d, scratch_);
    expect_gradient(b_, "table", table, d, [&] {
        zero(b_, y);
        position_embedding(b_, index, weight, table, y);
        return dot(y, probe);
    });
}

TEST_F(Gradient, Losses) {
    const Tensor targets = list<std::int32_t>({3, 0, -1, 4, 2}), weights = list<float>({1, 2.5f, 1, 0, 0.5f}),
                 loss = zeros({1}), losses = zeros({3});
    const Tensor student = random({5, 6}), teacher = random({5, 6}), s = zeros({5, 6}), t = zeros({5, 6});
    const auto entropy = [&] {
        convert(b_, student, s);
        zero(b_, loss);
        cross_entropy(b_, s, targets, weights, 0.3, {{0, 6}, {}}, loss, scratch_);
        return get(loss, 0);
    };
    entropy();
    const Tensor d = zeros({5, 6});
    convert(b_, s, d);
    expect_gradient(b_, "cross entropy", student, d, entropy);
    const auto distilled = [&] {
        convert(b_, student, s);
        convert(b_, teacher, t);
        zero(b_, losses);
        distillation(b_, s, t, targets, weights, {0.4, 0.6, 2.0}, 0.3, {{0, 6}, {}}, losses, scratch_);
        return get(losses, 0);
    };
    distilled();
    convert(b_, s, d);
    expect_gradient(b_, "distillation", student, d, distilled);
}

}  // namespace
}  // namespace maestro::ops
