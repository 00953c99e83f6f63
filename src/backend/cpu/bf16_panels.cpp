#include <algorithm>

#include "backend/cpu/bf16_gemm.hpp"
#include "backend/cpu/cpu_gemm.hpp"

namespace maestro::backend {

namespace {

/// Rows and columns of a panel: large enough that converting it costs about a hundredth of multiplying it,
/// small enough for the cache.
constexpr std::int64_t kSide = 512;
constexpr std::int64_t kMinElementsForThreads = 1 << 16;  ///< fewer are converted faster by one thread

void widen(const bf16* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* to) {
#pragma omp parallel for schedule(static) if (rows * columns > kMinElementsForThreads)
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
            to[r * columns + c] = static_cast<float>(from[r * stride + c]);
}

void round(const float* from, std::int64_t rows, std::int64_t columns, bf16* to, std::int64_t stride) {
#pragma omp parallel for schedule(static) if (rows * columns > kMinElementsForThreads)
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) to[r * stride + c] = bf16(from[r * columns + c]);
}

class Panels final : public Bf16Gemm {
public:
    const char* describe() const override { return "fp32 GEMMs of converted panels"; }
    void run(const Backend::Gemm& g) override {
        for (std::int64_t row = 0; row < g.m; row += kSide)
            for (std::int64_t column = 0; column < g.n; column += kSide)
                block(g, row, std::min(kSide, g.m - row), column, std::min(kSide, g.n - column));
    }

private:
    static std::unique_ptr<float[]> panel() { return std::make_unique_for_overwrite<float[]>(kSide * kSide); }

    /// Computes one block of the result, over all of k: a bf16 result stays in fp32 until the sum is
    /// complete, so that it is rounded once.
    void block(const Backend::Gemm& g, std::int64_t row, std::int64_t rows, std::int64_t column,
               std::int64_t columns) {
        const bool rounded_result = g.out == DType::bf16;
        const std::int64_t at = row * g.ldy + column;
        float* const sums = rounded_result ? y_.get() : static_cast<float*>(g.y) + at;
        bf16* const result = rounded_result ? static_cast<bf16*>(g.y) + at : nullptr;
        if (rounded_result && g.accumulate) widen(result, g.ldy, rows, columns, sums);
        for (std::int64_t begin = 0; begin < g.k; begin += kSide) {
            const std::int64_t length = std::min(kSide, g.k - begin);
            const auto* a = static_cast<const bf16*>(g.a);
            const auto* b = static_cast<const bf16*>(g.b);
            if (g.transpose_a)
                widen(a + begin * g.lda + row, g.lda, length, rows, a_.get());
            else
                widen(a + row * g.lda + begin, g.lda, rows, length, a_.get());
            if (g.transpose_b)
                widen(b + column * g.ldb + begin, g.ldb, columns, length, b_.get());
            else
                widen(b + begin * g.ldb + column, g.ldb, length, columns, b_.get());
            cpu_gemm({.a = a_.get(),
                      .b = b_.get(),
                      .y = sums,
                      .m = rows,
                      .n = columns,
                      .k = length,
                      .lda = g.transpose_a ? rows : length,
                      .ldb = g.transpose_b ? length : columns,
                      .ldy = rounded_result ? columns : g.ldy,
                      .transpose_a = g.transpose_a,
                      .transpose_b = g.transpose_b,
                      .accumulate = g.accumulate || begin > 0,
                      .in = DType::f32,
                      .out = DType::f32,
                      .alpha = g.alpha});
        }
        if (rounded_result) round(sums, rows, columns, result, g.ldy);
    }

    // An fp32 run never touches these pages, so they cost it no memory.
    std::unique_ptr<float[]> a_ = panel(), b_ = panel(), y_ = panel();
};

}  // namespace

std::unique_ptr<Bf16Gemm> make_bf16_panels() {
    return std::make_unique<Panels>();
}

}  // namespace maestro::backend
