// Rotary positions and the norm of heads, for heads of any size, against plain loops in double.
#include "ops/rotary.hpp"

#include <fmt/core.h>

#include <array>

#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::kTypes;
using testing_support::rounding;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class RotaryAngles : public testing_support::Views {
protected:
    /// Expects the cosine and sine of angle(row, column), up to some roundings of the angle.
    template <class Angle>
    void expect_angles(const Tensor& cos, const Tensor& sin, const std::string& what, Angle&& angle) {
        const auto c = values(cos), s = values(sin);
        const double rounding_of_type = cos.dtype == DType::f64 ? 0 : 6e-8;
        for (std::int64_t i = 0; i < cos.size(); ++i) {
            const double a = angle(static_cast<std::size_t>(i / cos.columns()), i % cos.columns());
            const double tolerance = rounding_of_type + 1e-15 * (1 + std::abs(a));
            ASSERT_NEAR(c[static_cast<std::size_t>(i)], std::cos(a), tolerance) << what << ", " << i;
            ASSERT_NEAR(s[static_cast<std::size_t>(i)], std::sin(a), tolerance) << what << ", " << i;
        }
        expect_kept_around(what);
    }
    static std::vector<std::int32_t> positions(std::int64_t rows, int first) {
        const std::vector<std::int32_t> some{0, 1, 2, 3, 250, 30'000, 1'000'003, 2'147'483'647};
        std::vector<std::int32_t> all;
        for (std::int64_t i = 0; i < rows; ++i)
            all.push_back(some[static_cast<std::size_t>((i + first) % 8)]);
        return all;
    }
};

TEST_F(RotaryAngles, MatchDoubleAtAnyPosition) {
    for (const DType type : {DType::f64, DType::f32})
        for (const std::int64_t columns : {1, 2, 31, 64, 128})
            for (const std::int64_t rows : {0, 1, 7, 8, 9, 40})
                for (const double theta : {1e4, 1e6}) {
                    const auto t = positions(rows, 0), y = positions(rows, 3);
                    const std::string what = fmt::format("{} x {}", rows, columns);
                    const Tensor cos = view(type, rows, columns, 1), sin = view(type, rows, columns, 1);
                    fill_rotary(b_, std::array{list(t)}, rotary_1d(2 * columns, theta), cos, sin);
                    expect_angles(cos, sin, what, [&](std::size_t row, std::int64_t j) {
                        return t[row] *
                               std::pow(theta, -static_cast<double>(j) / static_cast<double>(columns));
                    });
                    if (columns % 2 != 0) continue;
                    const Tensor cos2 = view(type, rows, columns, 0), sin2 = view(type, rows, columns, 0);
                    fill_rotary(b_, std::array{list(y), list(t)}, rotary_2d(2 * columns, theta), cos2, sin2);
                    expect_angles(cos2, sin2, what + " of two", [&](std::size_t row, std::int64_t j) {
                        const std::int64_t half = columns / 2;
                        return (j < half ? y : t)[row] *
                               std::pow(theta, -static_cast<double>(j % half) / static_cast<double>(half));
                    });
                }
}

/// The frequencies that transformers 5.24 computes (modeling_rope_utils, rope_type "llama3") for theta 10000,
/// factor 8, low_freq_factor 1, high_freq_factor 4 and original_max_position_embeddings 64.
TEST(RotaryScaling, IsThatOfLlama3) {
    RotaryPairs pairs = rotary_1d(16, 1e4);
    scale(pairs, {.factor = 8, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_length = 64});
    const double expected[] = {1,
                               0.244384587,
                               0.0130422562,
                               0.00395284733,
                               0.00124999997,
                               0.000395284733,
                               0.000125000006,
                               3.95284733e-05};
    for (int j = 0; j < 8; ++j) EXPECT_NEAR(pairs.frequency[j], expected[j], 2e-7 * expected[j]) << j;
}

// With one column the frequency is theta^0 = 1, so that the angle is exact.
TEST_F(RotaryAngles, AreAsAccurateAtLatePositions) {
    std::vector<std::int32_t> all = positions(8, 0);
    for (std::int32_t i = 0; i < 100; ++i) all.push_back(i * 21'474'836 + i);
    const auto rows = static_cast<std::int64_t>(all.size());
    const Tensor cos = view(DType::f64, rows, 1, 0), sin = view(DType::f64, rows, 1, 0);
    fill_rotary(b_, std::array{list(all)}, rotary_1d(2, 1e4), cos, sin);
    const auto c = values(cos), s = values(sin);
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_NEAR(c[i], std::cos(static_cast<double>(all[i])), 5e-16) << all[i];
        EXPECT_NEAR(s[i], std::sin(static_cast<double>(all[i])), 5e-16) << all[i];
    }
    expect_kept_around("late positions");
}

class HeadNorm : public testing_support::Views {
protected:
    struct Case {
        std::int64_t rows, query, key, dim, shift;
        bool q_norm, k_norm;
        std::int64_t heads() const { return query + key; }
        std::int64_t width() const { return (query + 2 * key) * dim; }
        std::string describe(DType type) const {
            return fmt::format("{} rows of {} + {} heads of {} {} from {}, norms {} {}", rows, query, key,
                               dim, name_of(type), shift, q_norm, k_norm);
        }
    };
    static constexpr double kEps = 1e-3;

    /// The inputs of both directions. The values v in qkv, which neither may read, are NaN.
    struct Input {
        Tensor qkv, q_norm, k_norm, cos, sin;
        std::vector<double> x, wq, wk, c, s;
    };
    Input input(const Case& c, DType type) {
        Input in;
        const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
        in.qkv = normal_view(type, c.rows, c.width(), c.shift);
        in.x = values(in.qkv);
        for (std::int64_t t = 0; t < c.rows; ++t)
            for (std::int64_t i = c.heads() * c.dim; i < c.width(); ++i)
                in.x[static_cast<std::size_t>(t * c.width() + i)] = kPoison;
        write(in.qkv, in.x);
        if (c.q_norm) in.q_norm = normal_view(type, 1, c.dim, c.shift).reshape({c.dim});
        if (c.k_norm) in.k_norm = normal_view(type, 1, c.dim, c.shift).reshape({c.dim});
        in.wq = c.q_norm ? values(in.q_norm) : std::vector<double>{};
        in.wk = c.k_norm ? values(in.k_norm) : std::vector<double>{};
        in.cos =
            normal_view(sums, c.rows, c.dim / 2, c.shift);  // any values serve, they need not be on a circle
        in.sin = normal_view(sums, c.rows, c.dim / 2, c.shift);
        in.c = values(in.cos);
        in.s = values(in.sin);
        return in;
    }
    static double scale_of(const double* x, std::int64_t dim) {
        double sum = 0;
        for (std::int64_t j = 0; j < dim; ++j) sum += x[j] * x[j];
        return 1 / std::sqrt(sum / static_cast<double>(dim) + kEps);
    }
    void forward(const Case& c, DType type);
    void backward(const Case& c, DType type, bool frozen);
};

void HeadNorm::forward(const Case& c, DType type) {
    const std::string what = c.describe(type);
    const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
    const Input in = input(c, type);
    const Tensor q = view(type, c.rows, c.query * c.dim, c.shift),
                 k = view(type, c.rows, c.key * c.dim, c.shift),
                 rstd = view(sums, c.rows, c.heads(), c.shift);
    head_norm_rotary(b_, in.qkv, in.q_norm, in.k_norm, in.cos, in.sin, q, k, rstd, kEps);
    std::vector<double> of_q, of_k, scales;
    const std::int64_t half = c.dim / 2;
    const auto scale = values(rstd);
    for (std::int64_t t = 0; t < c.rows; ++t)
        for (std::int64_t head = 0; head < c.heads(); ++head) {
            const bool query = head < c.query;
            const double* x = in.x.data() + t * c.width() + head * c.dim;
            const auto& w = query ? in.wq : in.wk;
            const auto at = static_cast<std::size_t>(t * c.heads() + head);
            std::vector<double> v(x, x + c.dim);
            if (w.empty()) {
                EXPECT_TRUE(std::isnan(scale[at])) << what << ": rstd is written without a norm";
            } else {
                EXPECT_NEAR(scale[at], scale_of(x, c.dim), rounding(sums) * scale[at]) << what;
                for (std::size_t j = 0; j < v.size(); ++j) v[j] *= scale_of(x, c.dim) * w[j];
            }
            std::vector<double>& out = query ? of_q : of_k;
            for (std::int64_t j = 0; j < c.dim; ++j) {
                const auto i = static_cast<std::size_t>(j),
                           angle = static_cast<std::size_t>(t * half + j % half);
                out.push_back(j < half
                                  ? v[i] * in.c[angle] - v[i + static_cast<std::size_t>(half)] * in.s[angle]
                                  : v[i] * in.c[angle] + v[i - static_cast<std::size_t>(half)] * in.s[angle]);
            }
        }
    if (c.rows > 0) {
        expect_near(q, of_q, rounding(type), what + ", q");
        expect_near(k, of_k, rounding(type), what + ", k");
    }
    expect_kept_around(what);
}

void HeadNorm::backward(const Case& c, DType type, bool frozen) {
    const std::string what = c.describe(type) + (frozen ? ", frozen" : "");
    const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
    const Input in = input(c, type);
    const Tensor dq = normal_view(type, c.rows, c.query * c.dim, c.shift),
                 dk = normal_view(type, c.rows, c.key * c.dim, c.shift),
                 rstd = normal_view(sums, c.rows, c.heads(), 0);
    const Tensor first = random(sums, {2, c.dim});
    const auto before = values(first);
    std::vector<double> scale(static_cast<std::size_t>(rstd.size()), kPoison);
    const std::int64_t half = c.dim / 2;
    const auto of_q = values(dq), of_k = values(dk);
    std::vector<double> expected, wq(before.begin(), before.begin() + c.dim),
        wk(before.begin() + c.dim, before.end());
    for (std::int64_t t = 0; t < c.rows; ++t)
        for (std::int64_t head = 0; head < c.heads(); ++head) {
            const bool query = head < c.query;
            const double* x = in.x.data() + t * c.width() + head * c.dim;
            const double* g = query ? of_q.data() + (t * c.query + head) * c.dim
                                    : of_k.data() + (t * c.key + head - c.query) * c.dim;
            const auto& w = query ? in.wq : in.wk;
            std::vector<double> v;
            for (std::int64_t j = 0; j < c.dim; ++j) {
                const auto angle = static_cast<std::size_t>(t * half + j % half);
                v.push_back(j < half ? g[j] * in.c[angle] + g[j + half] * in.s[angle]
                                     : g[j] * in.c[angle] - g[j - half] * in.s[angle]);
            }
            if (!w.empty()) {
                const double s = scale_of(x, c.dim);
                scale[static_cast<std::size_t>(t * c.heads() + head)] = s;
                double dot = 0;
                for (std::size_t j = 0; j < v.size(); ++j) {
                    (query ? wq : wk)[j] += v[j] * x[j] * s;
                    dot += v[j] * w[j] * x[j];
                }
                for (std::size_t j = 0; j < v.size(); ++j)
                    v[j] = v[j] * w[j] * s - x[j] * dot * s * s * s / static_cast<double>(c.dim);
            }
            expected.insert(expected.end(), v.begin(), v.end());
        }
    write(rstd, scale);
    std::vector<std::vector<double>> runs;
    for (int run = 0; run < 2; ++run) {
        const Tensor dqkv = view(type, c.rows, c.width(), c.shift);
        const Tensor dwq = view(sums, 1, c.dim, c.shift).reshape({c.dim}),
                     dwk = view(sums, 1, c.dim, c.shift).reshape({c.dim});
        write(dwq, {before.begin(), before.begin() + c.dim});
        write(dwk, {before.begin() + c.dim, before.end()});
        const bool no_q = frozen || !c.q_norm, no_k = frozen || !c.k_norm;
        head_norm_rotary_backward(b_, dq, dk, in.qkv, in.q_norm, in.k_norm, in.cos, in.sin, rstd, dqkv,
                                  no_q ? Tensor{} : dwq, no_k ? Tensor{} : dwk, scratch_);
        if (frozen) {
            wq.assign(before.begin(), before.begin() + c.dim);
            wk.assign(before.begin() + c.dim, before.end());
        }
        const auto all = values(dqkv);
        std::vector<double> found;
        for (std::int64_t i = 0; i < dqkv.size(); ++i) {
            const double value = all[static_cast<std::size_t>(i)];
            if (i % c.width() < c.heads() * c.dim)
                found.push_back(value);
            else
                ASSERT_TRUE(std::isnan(value)) << what << ": the columns of v are written";
        }
        if (c.rows > 0) {
            const Tensor packed = filled(DType::f64, {static_cast<std::int64_t>(found.size())});
            write(packed, found);
            expect_near(packed, expected, rounding(type), what);
        }
        // The terms are exact in double; their sum is taken in the accumulation type.
        expect_near(dwq, wq, 4 * rounding(sums), what + ", dq_norm");
        expect_near(dwk, wk, 4 * rounding(sums), what + ", dk_norm");
        const auto of_wq = values(dwq), of_wk = values(dwk);
        found.insert(found.end(), of_wq.begin(), of_wq.end());
        found.insert(found.end(), of_wk.begin(), of_wk.end());
        runs.push_back(found);
    }
    EXPECT_EQ(runs[0], runs[1]) << what << ": the second run differs";
    expect_kept_around(what);
}

TEST_F(HeadNorm, MatchesItsFormulaForAnyHeadSize) {
    for (const DType type : kTypes)
        for (const std::int64_t dim : {2, 6, 16, 64, 66, 128, 250, 256})
            for (const std::int64_t shift : {0, 1}) {
                forward({3, 3, 2, dim, shift, true, true}, type);
                forward({1, 1, 1, dim, shift, false, false}, type);
                backward({3, 3, 2, dim, shift, true, true}, type, false);
                backward({1, 1, 1, dim, shift, false, false}, type, false);
            }
}

TEST_F(HeadNorm, WorksForHeadsWithANormBesideHeadsWithout) {
    for (const bool query : {true, false})
        for (const std::int64_t dim : {4, 30, 128}) {
            forward({5, 2, 1, dim, 0, query, !query}, DType::f32);
            backward({5, 2, 1, dim, 0, query, !query}, DType::f32, false);
        }
}

TEST_F(HeadNorm, WorksForAnyNumberOfRows) {
    for (const std::int64_t rows : {0, 1, 31, 33, 150})
        for (const bool frozen : {false, true}) {
            forward({rows, 4, 1, 32, 0, true, true}, DType::bf16);
            backward({rows, 4, 1, 32, 0, true, true}, DType::bf16, frozen);
            backward({rows, 1, 1, 6, 1, true, true}, DType::f32, frozen);
        }
}

// More heads than the largest number of chunks of 64 heads.
TEST_F(HeadNorm, GradientsOfWeightsAreSumsOverManyHeads) {
    backward({4500, 8, 1, 4, 0, true, true}, DType::f32, false);
}

TEST_F(HeadNorm, InfinitiesStayInTheirHeads) {
    const Case c{2, 2, 1, 16, 0, false, false};
    const Input in = input(c, DType::f32);
    set(in.qkv, 3, -kInfinity);
    const Tensor q = view(DType::f32, 2, 32, 0), k = view(DType::f32, 2, 16, 0),
                 rstd = view(DType::f32, 2, 3, 0);
    head_norm_rotary(b_, in.qkv, {}, {}, in.cos, in.sin, q, k, rstd, kEps);
    const auto found = values(q);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::isfinite(found[i]), i != 3 && i != 11) << i;
    for (const double value : values(k)) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace maestro::ops
