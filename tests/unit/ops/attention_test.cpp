// Packed attention against a plain softmax over each sequence, in every type and with several threads.
#include "ops/attention.hpp"

#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

using testing_support::rounding;

struct Shape {
    std::int64_t heads, shared, dim;
};

class Attention : public testing_support::Tensors {
protected:
    struct Packed {
        Tensor q, k, qkv, out, lse;
    };
    Packed make(DType type, const Shape& s, std::int64_t rows) {
        const DType statistics = type == DType::f64 ? DType::f64 : DType::f32;
        return {random(type, {rows, s.heads * s.dim}), random(type, {rows, s.shared * s.dim}),
                random(type, {rows, (s.heads + 2 * s.shared) * s.dim}), filled(type, {rows, s.heads * s.dim}),
                filled(statistics, {rows, s.heads})};
    }
    static double q(const Packed& p, const Shape& s, std::int64_t t, std::int64_t h, std::int64_t d) {
        return get(p.q, (t * s.heads + h) * s.dim + d);
    }
    static double k(const Packed& p, const Shape& s, std::int64_t t, std::int64_t h, std::int64_t d) {
        return get(p.k, (t * s.shared + h * s.shared / s.heads) * s.dim + d);
    }
    static double v(const Packed& p, const Shape& s, std::int64_t t, std::int64_t h, std::int64_t d) {
        const std::int64_t width = (s.heads + 2 * s.shared) * s.dim;
        return get(p.qkv, t * width + (s.heads + s.shared + h * s.shared / s.heads) * s.dim + d);
    }
    /// out, then lse.
    static std::pair<std::vector<double>, std::vector<double>> plain(const Packed& p, const Shape& s,
                                                                     const std::vector<std::int32_t>& offsets,
                                                                     bool causal) {
        std::vector<double> out, lse;
        for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
            for (std::int64_t t = offsets[i]; t < offsets[i + 1]; ++t)
                for (std::int64_t h = 0; h < s.heads; ++h) {
                    const std::int64_t end = causal ? t + 1 : offsets[i + 1];
                    std::vector<double> mixed(static_cast<std::size_t>(s.dim), 0);
                    double sum = 0;
                    for (std::int64_t u = offsets[i]; u < end; ++u) {
                        double score = 0;
                        for (std::int64_t d = 0; d < s.dim; ++d) score += q(p, s, t, h, d) * k(p, s, u, h, d);
                        const double weight = std::exp(score / std::sqrt(static_cast<double>(s.dim)));
                        sum += weight;
                        for (std::int64_t d = 0; d < s.dim; ++d)
                            mixed[static_cast<std::size_t>(d)] += weight * v(p, s, u, h, d);
                    }
                    for (const double value : mixed) out.push_back(value / sum);
                    lse.push_back(std::log(sum));
                }
        return {out, lse};
    }
};

const std::vector<std::int32_t> kOffsets = {0, 1, 1, 38, 40, 171};  // lengths 1, 0, 37, 2, 131

TEST_F(Attention, EqualsAPlainSoftmaxOfEachSequence) {
    for (const Shape& shape : {Shape{1, 1, 8}, {4, 2, 16}, {6, 1, 32}, {3, 3, 12}})
        for (const bool causal : {true, false})
            for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
                const Packed p = make(type, shape, kOffsets.back());
                attention(b_, p.q, p.k, p.qkv, causal ? see_before(kOffsets) : see_all(kOffsets), p.out,
                          p.lse, scratch_);
                const auto [out, lse] = plain(p, shape, kOffsets, causal);
                const std::string what = std::string(name_of(type)) + (causal ? " causal" : " full");
                expect_near(p.out, out, rounding(type), what);
                expect_near(p.lse, lse, rounding(type), what + " lse");
                arena_.reset();
            }
}

TEST_F(Attention, BackwardInFloatEqualsBackwardInDouble) {
    const Shape s{4, 2, 16};
    const std::int64_t rows = kOffsets.back();
    for (const DType type : {DType::f32, DType::bf16}) {
        const Packed p = make(type, s, rows);
        const Tensor dout = random(type, {rows, s.heads * s.dim});
        const Packed exact{as_type(DType::f64, p.q, {rows, 64}), as_type(DType::f64, p.k, {rows, 32}),
                           as_type(DType::f64, p.qkv, {rows, 128}), filled(DType::f64, {rows, 64}),
                           filled(DType::f64, {rows, 4})};
        const auto back = [&](const Packed& x, const Tensor& gradient) {
            const DType t = x.q.dtype;
            attention(b_, x.q, x.k, x.qkv, see_before(kOffsets), x.out, x.lse, scratch_);
            const std::array<Tensor, 3> d{filled(t, {rows, 64}), filled(t, {rows, 32}),
                                          filled(t, {rows, 128})};
            attention_backward(b_, gradient, x.out, x.q, x.k, x.qkv, x.lse, see_before(kOffsets), d[0], d[1],
                               d[2], scratch_);
            return d;
        };
        const auto found = back(p, dout), expected = back(exact, as_type(DType::f64, dout, {rows, 64}));
        for (std::size_t i = 0; i < 3; ++i)
            expect_near(found[i], values(expected[i]), 2 * rounding(type),
                        std::string(name_of(type)) + " gradient " + std::to_string(i));
        arena_.reset();
    }
}

class AttentionThreads : public Attention {};

TEST_F(AttentionThreads, DoNotChangeABit) {
    const Shape s{4, 2, 16};
    std::vector<std::vector<double>> results;
    const Packed p = make(DType::f32, s, kOffsets.back());
    const Tensor dout = random(DType::f32, {kOffsets.back(), 64});
    for (const int threads : {1, 2}) {
        const auto backend = backend::make_cpu(threads);
        const Tensor dq = filled(DType::f32, {171, 64}), dk = filled(DType::f32, {171, 32}),
                     dqkv = filled(DType::f32, {171, 128});
        attention(*backend, p.q, p.k, p.qkv, see_before(kOffsets), p.out, p.lse, scratch_);
        attention_backward(*backend, dout, p.out, p.q, p.k, p.qkv, p.lse, see_before(kOffsets), dq, dk, dqkv,
                           scratch_);
        std::vector<double> all = values(p.out);
        for (const Tensor& t : {dq, dk, dqkv})
            for (const double value : values(t)) all.push_back(value);
        results.push_back(std::move(all));
    }
    EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace maestro::ops
