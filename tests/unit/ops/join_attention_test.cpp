// Joining the attention over two sets of keys, against plain sums.
#include "ops/attention/attention.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

class JoinAttention : public testing_support::Views {
protected:
    struct Side {
        std::vector<double> out, lse;
    };
    /// One entry for each head of each token. A side without keys has zeros; `other` may then have any
    /// values.
    Side make(std::int64_t heads, std::int64_t dim, bool other) {
        const Random numbers(3, "join/" + std::to_string(dim) + (other ? "/other" : ""));
        Side side;
        for (std::int64_t i = 0; i < heads; ++i) {
            const auto at = static_cast<std::uint64_t>(i * (dim + 1));
            const bool no_keys = other ? i % 7 == 2 || i % 7 == 5 : i % 7 == 3 || i % 7 == 5;
            const double far = i % 7 == 6 ? (other ? 1e4 : -1e4) : 0;
            side.lse.push_back(no_keys ? kNoKeys : static_cast<float>(far + 2 * numbers.normal(at)));
            for (std::int64_t c = 0; c < dim; ++c)
                side.out.push_back(
                    !no_keys ? static_cast<float>(numbers.normal(at + 1 + static_cast<std::uint64_t>(c)))
                    : other  ? std::nan("")
                             : 0);
        }
        return side;
    }
    static Side join(const Side& first, const Side& other, std::int64_t dim) {
        Side all = first;
        for (std::size_t i = 0; i < first.lse.size(); ++i) {
            if (other.lse[i] == kNoKeys) continue;
            const double largest = std::max(first.lse[i], other.lse[i]),
                         weight = std::exp(first.lse[i] - largest),
                         other_weight = std::exp(other.lse[i] - largest);
            all.lse[i] = largest + std::log(weight + other_weight);
            for (std::size_t c = i * static_cast<std::size_t>(dim);
                 c < (i + 1) * static_cast<std::size_t>(dim); ++c)
                all.out[c] = (weight * first.out[c] + other_weight * other.out[c]) / (weight + other_weight);
        }
        return all;
    }
    static void compare(const std::vector<double>& found, const std::vector<double>& expected,
                        double tolerance, const std::string& what) {
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i)
            if (std::isinf(expected[i]))
                ASSERT_EQ(found[i], expected[i]) << what << ", element " << i;
            else
                ASSERT_NEAR(found[i], expected[i], tolerance * (1 + std::abs(expected[i])))
                    << what << ", element " << i;
    }
};

TEST_F(JoinAttention, MatchesItsFormulaForAnySizeAndAlignment) {
    for (const std::int64_t dim : {1, 3, 16, 31, 33, 64, 127, 128, 256, 1000})
        for (const std::int64_t rows : {0, 1, 13}) {
            constexpr std::int64_t kHeads = 3;
            const Side first = make(rows * kHeads, dim, false), other = make(rows * kHeads, dim, true);
            for (const auto& [type, other_type] :
                 {std::pair{DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::f64, DType::f64}})
                for (const std::int64_t before : {0, 1, 4}) {
                    const Tensor out = view(type, rows, kHeads * dim, before),
                                 lse = view(type, rows, kHeads, before),
                                 other_out = view(other_type, rows, kHeads * dim, before, other.out),
                                 other_lse = view(type, rows, kHeads, before, other.lse);
                    const Side expected = join(first, {values(other_out), other.lse}, dim);
                    std::vector<std::vector<double>> runs;
                    for (int run = 0; run < 2; ++run) {
                        write(out, first.out);
                        write(lse, first.lse);
                        join_attention(b_, other_out, other_lse, out, lse);
                        runs.push_back(values(out));
                        runs.push_back(values(lse));
                    }
                    const std::string what = std::string(name_of(other_type)) + " to " + name_of(type) +
                                             " of " + std::to_string(rows) + " x 3 x " + std::to_string(dim) +
                                             " after " + std::to_string(before);
                    const double tolerance = type == DType::f64 ? 1e-14 : 1e-6;
                    compare(runs[0], expected.out, tolerance, what);
                    compare(runs[1], expected.lse, tolerance, what + " lse");
                    EXPECT_EQ(runs[0], runs[2]) << what;
                    EXPECT_EQ(runs[1], runs[3]) << what;
                    expect_kept_around(what);
                }
        }
}

TEST_F(JoinAttention, HandlesManyTokens) {
    constexpr std::int64_t kRows = 301, kHeads = 5, kDim = 20;
    const Side first = make(kRows * kHeads, kDim, false), other = make(kRows * kHeads, kDim, true);
    const Tensor out = view(DType::f32, kRows, kHeads * kDim, 0, first.out),
                 lse = view(DType::f32, kRows, kHeads, 0, first.lse),
                 other_out = view(DType::f32, kRows, kHeads * kDim, 0, other.out),
                 other_lse = view(DType::f32, kRows, kHeads, 0, other.lse);
    join_attention(b_, other_out, other_lse, out, lse);
    const Side expected = join(first, other, kDim);
    compare(values(out), expected.out, 1e-6, "out");
    compare(values(lse), expected.lse, 1e-6, "lse");
    expect_kept_around("many tokens");
}

}  // namespace
}  // namespace maestro::ops
