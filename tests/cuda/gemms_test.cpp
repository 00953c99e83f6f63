// GEMMs by cuBLASLt: epilogues, and the choice of an algorithm per shape.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "backend/device.hpp"
#include "backend/gpus.hpp"
#include "hosted/cublaslt.hpp"
#include "ops/elementwise.hpp"
#include "ops/gelu.hpp"
#include "ops/linear.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::rounding;

class Gemms : public testing_support::Views {
protected:
    static constexpr std::int64_t kInputs = 40;
    struct Layer {
        Tensor x, w, bias;
        std::vector<double> expected;  ///< x w^T + bias
    };
    Layer layer(DType type, std::int64_t rows, std::int64_t outputs) {
        Layer l{view(type, rows, kInputs, 0, normal(rows * kInputs)),
                view(type, outputs, kInputs, 0, normal(outputs * kInputs)),
                view(type, 1, outputs, 0, normal(outputs)),
                {}};
        const auto x = values(l.x), w = values(l.w), bias = values(l.bias);
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t o = 0; o < outputs; ++o) {
                double sum = bias[static_cast<std::size_t>(o)];
                for (std::int64_t i = 0; i < kInputs; ++i)
                    sum += x[static_cast<std::size_t>(r * kInputs + i)] *
                           w[static_cast<std::size_t>(o * kInputs + i)];
                l.expected.push_back(sum);
            }
        return l;
    }
    /// Calls body(type, rows, outputs, what) for shapes whose epilogue the library supports and for others.
    template <class Body>
    void over_shapes(Body&& body) {
        for (const DType type : {DType::f64, DType::f32, DType::bf16})
            for (const std::int64_t rows : {1, 2, 33, 100, 102})
                for (const std::int64_t outputs : {8, 24, 13}) {
                    const std::string what = fmt::format("{} {} x {}", name_of(type), rows, outputs);
                    body(type, rows, outputs, what);
                    expect_kept_around(what);
                }
    }
    /// Waits for all queued work on the tensors, so that another backend's stream may use them.
    template <class... T>
    void synchronize(const T&... tensors) {
        (values(tensors), ...);
    }
    static std::int64_t gemms() {
        return hosted::gemms_by_candidate(0) + hosted::gemms_by_candidate(1) + hosted::gemms_by_candidate(2);
    }
};

double gelu_of(double x, GeluForm form) {
    if (form == GeluForm::exact) return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

TEST_F(Gemms, AddABiasInTheSamePass) {
    over_shapes([&](DType type, std::int64_t rows, std::int64_t outputs, const std::string& what) {
        const Layer l = layer(type, rows, outputs);
        const Tensor y = view(type, rows, outputs, 0);
        linear(b_, l.x, l.w, y, l.bias);
        expect_each(y, l.expected, 10 * rounding(type), what);
    });
}

TEST_F(Gemms, AddAnotherMatrixInTheSamePass) {
    over_shapes([&](DType type, std::int64_t rows, std::int64_t outputs, const std::string& what) {
        for (const std::int64_t shift : {0, 1}) {
            const Layer l = layer(type, rows, outputs);
            const Tensor y = view(type, rows, outputs, 0, normal(rows * outputs)),
                         addend = view(type, rows, outputs, shift, normal(rows * outputs));
            const auto bias = values(l.bias), added = values(addend);
            auto expected = l.expected;
            for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += added[i] - bias[i % bias.size()];
            b_.reset_counts();
            linear_accumulate(b_, l.x, l.w, y, addend);
            EXPECT_EQ(b_.counts().launches, 1) << what;
            expect_each(y, expected, 10 * rounding(type), what);
            expect_each(addend, added, 0, what + ", addend");
        }
    });
}

TEST_F(Gemms, ActivateInTheSamePass) {
    over_shapes([&](DType type, std::int64_t rows, std::int64_t outputs, const std::string& what) {
        const Layer l = layer(type, rows, outputs);
        const Tensor y = view(type, rows, outputs, 0), active = view(type, rows, outputs, 0);
        for (const GeluForm form : {GeluForm::tanh, GeluForm::exact}) {
            linear_gelu(b_, l.x, l.w, l.bias, y, active, form);
            expect_each(y, l.expected, 10 * rounding(type), what);
            auto expected = l.expected;
            for (double& value : expected) value = gelu_of(value, form);
            expect_each(active, expected, 10 * rounding(type),
                        what + (form == GeluForm::exact ? ", exact" : ", active"));
        }
    });
}

TEST_F(Gemms, SumABiasGradientInTheSamePass) {
    over_shapes([&](DType type, std::int64_t rows, std::int64_t outputs, const std::string& what) {
        const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
        const Tensor dy = view(type, rows, outputs, 0, normal(rows * outputs)),
                     x = view(type, rows, kInputs, 0, normal(rows * kInputs)),
                     dw = view(sums, outputs, kInputs, 0, normal(outputs * kInputs)),
                     dbias = view(sums, 1, outputs, 0, normal(outputs));
        auto weight = values(dw), bias = values(dbias);
        const auto gradient = values(dy), input = values(x);
        for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
            for (std::size_t o = 0; o < bias.size(); ++o) {
                const double slope = gradient[r * bias.size() + o];
                bias[o] += slope;
                for (std::size_t i = 0; i < kInputs; ++i)
                    weight[o * kInputs + i] += slope * input[r * kInputs + i];
            }
        linear_backward_weight(b_, dy, x, dw, dbias, scratch_);
        expect_each(dw, weight, 10 * rounding(sums), what);
        expect_each(dbias, bias, 10 * rounding(sums), what + ", bias");
    });
}

TEST_F(Gemms, WithAnEpilogueAreOneLaunch) {
    const Layer l = layer(DType::f32, 32, 16);
    const Tensor y = view(DType::f32, 32, 16, 0), active = view(DType::f32, 32, 16, 0);
    b_.reset_counts();
    linear_gelu(b_, l.x, l.w, l.bias, y, active, GeluForm::tanh);
    EXPECT_EQ(b_.counts().launches, 1);
}

TEST_F(Gemms, OfAClassOfShapesShareAnAlgorithmIfItSupportsThem) {
    // 65 to 80 rows are one class. The simulated library does not support an odd number of rows with the
    // class' algorithm.
    for (const std::int64_t rows : {80, 66, 79, 65, 72, 78}) {
        const Layer l = layer(DType::f32, rows, 24);
        const Tensor y = view(DType::f32, rows, 24, 0);
        linear(b_, l.x, l.w, y, l.bias);
        expect_each(y, l.expected, 10 * rounding(DType::f32), fmt::format("{} rows", rows));
    }
}

TEST_F(Gemms, CheckTheAlgorithmOfAClassOncePerShape) {
    const auto checks_of = [&](std::int64_t rows) {
        const Layer l = layer(DType::f32, rows, 24);
        const Tensor y = view(DType::f32, rows, 24, 0);
        const std::int64_t before = hosted::algorithm_checks();
        linear(b_, l.x, l.w, y, l.bias);
        expect_each(y, l.expected, 10 * rounding(DType::f32), fmt::format("{} rows", rows));
        return hosted::algorithm_checks() - before;
    };
    for (const std::int64_t rows : {80, 66, 79}) EXPECT_EQ(checks_of(rows), 1) << rows;
    for (const std::int64_t rows : {66, 80, 79, 66}) EXPECT_EQ(checks_of(rows), 0) << rows;
}

TEST_F(Gemms, AreBenchmarkedIfRequested) {
    const auto autotuning = backend::make_cuda(0, {.tf32 = false, .autotune = true});
    const Layer l = layer(DType::f32, 32, 24);
    const Tensor y = view(DType::f32, 32, 24, 0), dx = view(DType::f32, 32, kInputs, 0, 0.5),
                 dy = view(DType::f32, 32, 24, 0, normal(32 * 24));
    synchronize(y, dx, dy);
    const std::int64_t fast = hosted::gemms_by_candidate(hosted::kFastCandidate), all = gemms();
    linear(*autotuning, l.x, l.w, y);
    // Each of three candidates runs the same number of trials, and the fastest one runs once more.
    const std::int64_t trials = gemms() - all - 1;
    EXPECT_GT(trials, 0);
    EXPECT_EQ(hosted::gemms_by_candidate(hosted::kFastCandidate) - fast, trials / 3 + 1);
    for (int i = 0; i < 5; ++i) linear(*autotuning, l.x, l.w, y);
    EXPECT_EQ(hosted::gemms_by_candidate(hosted::kFastCandidate) - fast, trials / 3 + 6);
    EXPECT_EQ(gemms() - all, trials + 6);
    // A GEMM that accumulates adds to its result once, whatever the number of trials.
    linear_backward_input(*autotuning, dy, l.w, dx, true);
    const auto gradient = values(dy), w = values(l.w);
    std::vector<double> expected(32 * kInputs, 0.5);
    for (std::size_t r = 0; r < 32; ++r)
        for (std::size_t o = 0; o < 24; ++o)
            for (std::size_t i = 0; i < kInputs; ++i)
                expected[r * kInputs + i] += gradient[r * 24 + o] * w[o * kInputs + i];
    const auto found = testing_support::read_elements(*autotuning, dx);
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
}

TEST_F(Gemms, AreBenchmarkedInPlannedMemory) {
    // The gradient is larger than the memory for trials, so that a trial computes some of its rows.
    constexpr std::int64_t kRows = 2, kOutputs = 4224, kWidth = 2048;
    const Tensor dy = filled(DType::f64, {kRows, kOutputs}, 0.25), x = filled(DType::f64, {kRows, kWidth}, 3),
                 y = filled(DType::f64, {kRows, kOutputs}, 1);
    backend::Arena arena(b_, std::size_t{80} << 20);
    const Tensor dw = arena.allocate(DType::f64, {kOutputs, kWidth});
    zero(b_, dw);
    synchronize(dy, x, y, dw.slice(0, 1));
    const backend::Device device{.gpu = true, .reason = {}, .gemm = {.tf32 = false, .autotune = true}};
    const std::size_t before = backend::free_memory(device);
    const auto autotuning = backend::make_cuda(device.number, device.gemm);
    const std::size_t left = backend::free_memory(device);
    EXPECT_EQ((before - left) >> 20,
              backend::library_memory_of_gpu(device.number, device.gemm).workspace >> 20);
    const std::int64_t fast = hosted::gemms_by_candidate(hosted::kFastCandidate);
    linear_backward_weight(*autotuning, dy, x, dw);
    EXPECT_EQ(backend::free_memory(device), left);
    EXPECT_GT(hosted::gemms_by_candidate(hosted::kFastCandidate) - fast, 1);
    const auto found = testing_support::read_elements(*autotuning, dw);
    EXPECT_EQ(std::count(found.begin(), found.end(), kRows * 0.25 * 3), kOutputs * kWidth);
    // What a GEMM adds to another matrix is measured on its real result.
    linear_accumulate(*autotuning, x, dw, y, dy);
    EXPECT_EQ(backend::free_memory(device), left);
    EXPECT_THAT(testing_support::read_elements(*autotuning, y), testing::Each(0.25 + kWidth * 3 * 1.5));
}

TEST_F(Gemms, AreBenchmarkedWithADeadline) {
    const auto autotuning = backend::make_cuda(0, {.tf32 = false, .autotune = true});
    const Layer l = layer(DType::f32, 32, 24);
    const Tensor y = view(DType::f32, 32, 24, 0);
    synchronize(y);
    autotuning->set_wait(
        [](const auto&, const std::string& what) { throw Error(ExitCode::peer_lost, what); });
    try {
        linear(*autotuning, l.x, l.w, y);
        ADD_FAILURE() << "autotuning waited without a deadline";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::peer_lost);
        EXPECT_STREQ(error.what(), "GPU 0 to finish its queued work");
    }
}

TEST_F(Gemms, LosePrecisionByTf32IfRequested) {
    const auto tf32 = backend::make_cuda(0, {.tf32 = true, .autotune = false});
    const Layer l = layer(DType::f32, 64, 16);
    const Tensor y = view(DType::f32, 64, 16, 0);
    synchronize(y);
    linear(*tf32, l.x, l.w, y, l.bias);
    const auto found = testing_support::read_elements(*tf32, y);
    double max_error = 0;
    for (std::size_t i = 0; i < found.size(); ++i)
        max_error = std::max(max_error, std::abs(found[i] - l.expected[i]));
    EXPECT_GT(max_error, 1e-4);
    EXPECT_LT(max_error, 3e-2);
}

}  // namespace
}  // namespace maestro::ops
