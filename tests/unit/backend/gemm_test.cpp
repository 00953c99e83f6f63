// Matrix products against triple loops in double.
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace maestro::backend {
namespace {

using testing_support::rounding;

struct Case {
    DType in, out;
    std::int64_t m, n, k;
};

class Gemm : public testing_support::Tensors {
protected:
    void compare(const Case& c, bool transpose_a, bool transpose_b, bool accumulate) {
        constexpr std::int64_t kPad = 3;  // columns that do not belong to the matrices
        const std::int64_t rows_a = transpose_a ? c.k : c.m, columns_a = transpose_a ? c.m : c.k,
                           rows_b = transpose_b ? c.n : c.k, columns_b = transpose_b ? c.k : c.n;
        const Tensor a = random(c.in, {rows_a, columns_a + kPad}),
                     b = random(c.in, {rows_b, columns_b + kPad}), y = random(c.out, {c.m, c.n + kPad});
        std::vector<double> expected = values(y);
        for (std::int64_t i = 0; i < c.m; ++i)
            for (std::int64_t j = 0; j < c.n; ++j) {
                double sum = accumulate ? expected[static_cast<std::size_t>(i * (c.n + kPad) + j)] : 0;
                for (std::int64_t l = 0; l < c.k; ++l)
                    sum += get(a, transpose_a ? l * (columns_a + kPad) + i : i * (columns_a + kPad) + l) *
                           get(b, transpose_b ? j * (columns_b + kPad) + l : l * (columns_b + kPad) + j);
                expected[static_cast<std::size_t>(i * (c.n + kPad) + j)] = sum;
            }
        b_.gemm({.a = a.data,
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
                 .out = c.out});
        expect_near(y, expected, rounding(c.out),
                    std::string(name_of(c.in)) + " " + std::to_string(c.m) + " x " + std::to_string(c.n) +
                        " x " + std::to_string(c.k) + (transpose_a ? " A^T" : "") +
                        (transpose_b ? " B^T" : "") + (accumulate ? " +=" : ""));
        arena_.reset();
    }
};

TEST_F(Gemm, OfEveryShapeAndOrientation) {
    for (const DType type : {DType::f64, DType::f32})
        for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {7, 33, 5}, {129, 65, 70}, {64, 128, 256}})
            for (const bool transpose_a : {false, true})
                for (const bool transpose_b : {false, true})
                    for (const bool accumulate : {false, true})
                        compare({type, type, m, n, k}, transpose_a, transpose_b, accumulate);
}

// The variable length is cut into powers of two and a padded rest; the padding must not be seen.
TEST_F(Gemm, OfBf16WithEveryLength) {
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

TEST_F(Gemm, CountsTwoOperationsAMultiplyAdd) {
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
