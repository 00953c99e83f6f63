// GEMMs against triple loops in double.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>

#include "backend/cpu/bf16_gemm.hpp"
#include "support/tensors.hpp"

namespace maestro::backend {
namespace {

using testing_support::rounding;

struct Case {
    DType in, out;
    std::int64_t m, n, k;
    double alpha = 1;
};

/// Returns all implementations of bf16 GEMMs that this processor has.
std::vector<std::unique_ptr<Bf16Gemm>> bf16_implementations() {
    std::vector<std::unique_ptr<Bf16Gemm>> implementations;
    implementations.push_back(make_bf16_panels());
    for (const Bf16Use use : {Bf16Use::layers, Bf16Use::groups})
        if (auto native = make_bf16_native(use)) implementations.push_back(std::move(native));
    return implementations;
}

class Gemm : public testing_support::Tensors {
protected:
    using Run = std::function<void(const Backend::Gemm&)>;
    void compare(const Case& c, bool transpose_a, bool transpose_b, bool accumulate) {
        compare([&](const Backend::Gemm& g) { b_.gemm(g); }, c, transpose_a, transpose_b, accumulate);
    }
    void compare(const Run& run, const Case& c, bool transpose_a, bool transpose_b, bool accumulate) {
        constexpr std::int64_t kPad = 3;  // columns beside the matrices
        const std::int64_t rows_a = transpose_a ? c.k : c.m, columns_a = transpose_a ? c.m : c.k,
                           rows_b = transpose_b ? c.n : c.k, columns_b = transpose_b ? c.k : c.n;
        const Tensor a = matrix(c.in, rows_a, columns_a + kPad, shifts_[0]),
                     b = matrix(c.in, rows_b, columns_b + kPad, shifts_[1]),
                     y = matrix(c.out, c.m, c.n + kPad, shifts_[2]);
        const std::vector<double> of_a = values(a), of_b = values(b);
        std::vector<double> expected = values(y);
        for (std::int64_t i = 0; i < c.m; ++i)
            for (std::int64_t j = 0; j < c.n; ++j) {
                double sum = 0;
                for (std::int64_t l = 0; l < c.k; ++l)
                    sum += of_a[transpose_a ? l * (columns_a + kPad) + i : i * (columns_a + kPad) + l] *
                           of_b[transpose_b ? j * (columns_b + kPad) + l : l * (columns_b + kPad) + j];
                double& to = expected[static_cast<std::size_t>(i * (c.n + kPad) + j)];
                to = (accumulate ? to : 0) + c.alpha * sum;
            }
        std::vector<std::byte> before(y.bytes());
        b_.download(y, before.data());
        const Backend::Gemm g{.a = a.data,
                              .b = b.data,
                              .y = y.data,
                              .m = c.m,
                              .n = c.n,
                              .k = c.k,
                              .lda = columns_a + kPad,
                              .ldb = columns_b + kPad,
                              .ldy = c.n + kPad,
                              .transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .accumulate = accumulate,
                              .in = c.in,
                              .out = c.out,
                              .alpha = c.alpha};
        run(g);
        const std::string what = std::string(name_of(c.in)) + " " + std::to_string(c.m) + " x " +
                                 std::to_string(c.n) + " x " + std::to_string(c.k) +
                                 (transpose_a ? " A^T" : "") + (transpose_b ? " B^T" : "") +
                                 (accumulate ? " +=" : "");
        expect_near(y, expected, rounding(c.out), what);
        if (c.in == DType::bf16) expect_one_rounding(y, expected, c, what);
        const std::vector<double> first = values(y);
        b_.upload(before.data(), y);
        run(g);
        EXPECT_EQ(values(y), first) << what << ", again";
        arena_.reset();
    }
    Tensor matrix(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift) {
        return random(type, {shift + rows * columns})
            .slice(shift, shift + rows * columns)
            .reshape({rows, columns});
    }
    /// Expects that no partial sum was rounded to bf16: every element is within half a unit in its last
    /// place.
    void expect_one_rounding(const Tensor& y, const std::vector<double>& expected, const Case& c,
                             const std::string& what) {
        const double last_place = c.out == DType::bf16 ? 1.0 / 256 : 1e-6;
        const double sums = 1e-6 * static_cast<double>(c.k);  // error of an fp32 sum of k terms of about 1
        const std::vector<double> found = values(y);
        for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR(found[i], expected[i], last_place * std::abs(expected[i]) + sums)
                << what << ", element " << i;
    }
    std::array<std::int64_t, 3> shifts_{};  ///< elements by which A, B and Y are off an aligned address
};

TEST_F(Gemm, MatchesLoopsForEveryShapeAndOrientation) {
    for (const DType type : {DType::f64, DType::f32})
        for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {7, 33, 5}, {129, 65, 70}, {64, 128, 256}})
            for (const bool transpose_a : {false, true})
                for (const bool transpose_b : {false, true})
                    for (const bool accumulate : {false, true})
                        compare({type, type, m, n, k}, transpose_a, transpose_b, accumulate);
}

// The CPU splits the variable length into powers of two and a padded rest. The padding must not change the
// result.
TEST_F(Gemm, Bf16MatchesLoopsForEveryLength) {
    for (const std::int64_t length : {1, 7, 8, 63, 64, 65, 127, 200, 530, 1024, 1025, 2100}) {
        for (const bool accumulate : {false, true}) {
            compare({DType::bf16, DType::bf16, length, 33, 40}, false, true, accumulate);   // y = x w^T
            compare({DType::bf16, DType::bf16, length, 40, 33}, false, false, accumulate);  // dx = dy w
            compare({DType::bf16, DType::f32, length, 20, 33}, false, true, accumulate);    // logits
            compare({DType::bf16, DType::f32, 33, 40, length}, true, false, accumulate);    // dw = dy^T x
            compare({DType::bf16, DType::f32, 17, 9, length}, true, true, accumulate);
        }
    }
}

TEST_F(Gemm, ScalesTheSumsOfOneGemmAndNotWhatTheyAreAddedTo) {
    for (const bool accumulate : {false, true})
        for (const double alpha : {1.5, 1.0, -0.25}) {  // of one shape, one after another
            for (const DType type : {DType::f64, DType::f32})
                compare({type, type, 20, 9, 33, alpha}, false, true, accumulate);
            compare({DType::bf16, DType::bf16, 65, 12, 40, alpha}, false, true, accumulate);
            compare({DType::bf16, DType::bf16, 65, 40, 12, alpha}, false, false, accumulate);
            compare({DType::bf16, DType::f32, 12, 40, 130, alpha}, true, false, accumulate);
        }
}

// GEMMs of one shape with different alignments: an algorithm that was chosen for one must not be used for
// another that it does not support.
TEST_F(Gemm, MatchesLoopsForAnyAlignment) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const std::int64_t shift : {8, 4, 2, 1})
            for (const std::size_t shifted : {0, 1, 2, 3}) {  // 3: none
                shifts_ = {};
                if (shifted < 3) shifts_[shifted] = shift;
                compare({type, type, 16, 29, 37}, false, true, false);
                compare({type, type, 29, 16, 37}, false, true, false);
            }
}

// Sizes below, at and above one panel and several panels, in every dimension.
TEST_F(Gemm, Bf16MatchesLoopsByEveryImplementation) {
    if (testing_support::kOnGpu) GTEST_SKIP() << "a GPU uses none of these implementations";
    for (const auto& implementation : bf16_implementations())
        for (const int threads : {1, 2}) {
            SCOPED_TRACE(std::string(implementation->describe()) + ", threads " + std::to_string(threads));
            const auto backend = make_cpu(threads);  // sets the number of threads of the process
            for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                          {7, 33, 5},
                                          {512, 8, 24},
                                          {515, 19, 40},
                                          {33, 1030, 17},
                                          {20, 9, 1543},
                                          {130, 514, 66}})
                for (const DType out : {DType::bf16, DType::f32})
                    for (const bool transpose_a : {false, true})
                        for (const bool transpose_b : {false, true})
                            for (const bool accumulate : {false, true})
                                compare([&](const Backend::Gemm& g) { implementation->run(g); },
                                        {DType::bf16, out, m, n, k, m == 33 || m == 20 ? 0.75 : 1},
                                        transpose_a, transpose_b, accumulate);
        }
}

TEST_F(Gemm, CountsAMultiplyAddAsTwoOperations) {
    for (const auto& backend : {make_cpu(1), make_meta()}) {
        float memory[4] = {};
        backend->reset_counts();
        const bool real = backend->computes();
        backend->gemm({.a = memory,
                       .b = memory,
                       .y = memory + 2,
                       .m = real ? 1 : 1000,
                       .n = 1,
                       .k = real ? 2 : 5000,
                       .lda = 2,
                       .ldb = 1,
                       .ldy = 1,
                       .transpose_a = false,
                       .transpose_b = false,
                       .accumulate = false,
                       .in = DType::f32,
                       .out = DType::f32});
        EXPECT_EQ(backend->counts().flops, real ? 4 : 1e7);
        EXPECT_EQ(backend->counts().launches, 1);
    }
}

}  // namespace
}  // namespace maestro::backend
