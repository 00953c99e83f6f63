// AdamW against a loop in double, and the sum of squares for the gradient norm.
#include "ops/adamw.hpp"

#include "ops/elementwise.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

class Optimizer : public testing_support::Views {
protected:
    double squares(const Tensor& t, double before = 0) {
        const Tensor sum = filled(DType::f64, {1}, before);
        add_squares(b_, t, sum, scratch_);
        return get(sum, 0);
    }
    Tensor chunks(const std::vector<UpdateRange>& updated) {
        const auto list = update_chunks(updated);
        const Tensor t = arena_.allocate(
            DType::u8, {static_cast<std::int64_t>(list.size()), sizeof(kernels::UpdateChunk)});
        if (!list.empty()) b_.upload(list.data(), t);
        return t;
    }
};

/// Returns the settings of step number `step`.
AdamW settings_of(int step) {
    return {.learning_rate = 0.01 * step,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .step = step,
            .gradient_scale = 1.0 / step};
}

/// Updates one element as settings_of(step) does.
void update(double& weight, double gradient, double& first, double& second, int step, bool decays = true) {
    const double x = gradient / step;
    first = 0.9 * first + 0.1 * x;
    second = 0.95 * second + 0.05 * x * x;
    weight -= 0.01 * step *
              (first / (1 - std::pow(0.9, step)) / (std::sqrt(second / (1 - std::pow(0.95, step))) + 1e-8) +
               (decays ? 0.1 : 0) * weight);
}

TEST_F(Optimizer, AdamWMatchesALoopInDouble) {
    constexpr std::int64_t kSize = 1000;
    for (const auto& [type, tolerance] : {std::pair{DType::f32, 1e-6}, std::pair{DType::f64, 1e-14}}) {
        if (type == DType::f64 && testing_support::kOnGpu) continue;
        SCOPED_TRACE(name_of(type));
        const Tensor w = random(type, {kSize}), m = filled(type, {kSize}), v = filled(type, {kSize});
        const Tensor all = chunks({{{0, kSize}, true}});
        auto weight = values(w), first = values(m), second = values(v);
        for (int step = 1; step <= 5; ++step) {
            const Tensor g = random(type, {kSize});
            adamw(b_, w, g, m, v, all, settings_of(step));
            for (std::size_t i = 0; i < kSize; ++i)
                update(weight[i], get(g, static_cast<std::int64_t>(i)), first[i], second[i], step);
        }
        expect_near(w, weight, tolerance, "weights");
        expect_near(m, first, tolerance, "first moments");
        expect_near(v, second, tolerance, "second moments");
    }
}

TEST_F(Optimizer, AdamWWorksForAnySizeAndAlignment) {
    for (const std::int64_t size : {0, 1, 2, 3, 4, 5, 31, 33, 127, 1000, 4097, 60'000})
        for (const std::int64_t shift : {0, 1, 2, 3})
            for (const std::int64_t other : {0, 1}) {  // the moments may be aligned differently
                const std::string what = fmt::format("[{}] from {} and {}", size, shift, shift + other);
                std::vector<double> squared = normal(size);
                for (double& value : squared) value *= value;
                const Tensor w = view(DType::f32, 1, size, shift, normal(size)),
                             g = view(DType::f32, 1, size, shift, normal(size)),
                             m = view(DType::f32, 1, size, shift + other, normal(size)),
                             v = view(DType::f32, 1, size, shift + other, squared);
                auto weight = values(w), first = values(m), second = values(v);
                const auto gradient = values(g);
                const std::int64_t third = size / 3;  // the last element of the second third is not updated
                const std::vector<UpdateRange> updated{{{0, third}, true},
                                                       {{third, std::max(third, 2 * third - 1)}, false},
                                                       {{2 * third, size}, true}};
                adamw(b_, w, g, m, v, chunks(updated), settings_of(3));
                for (const auto& [range, decays] : updated)
                    for (auto i = static_cast<std::size_t>(range.begin);
                         i < static_cast<std::size_t>(range.end); ++i)
                        update(weight[i], gradient[i], first[i], second[i], 3, decays);
                expect_each(w, weight, 1e-6, what + ", weights");
                expect_each(m, first, 1e-6, what + ", first moments");
                expect_each(v, second, 1e-6, what + ", second moments");
                EXPECT_EQ(values(g), gradient) << what;
                expect_kept_around(what);
            }
}

TEST_F(Optimizer, NormIsSummedInDoubleForAnyNumberOfThreads) {
    if (testing_support::kOnGpu) GTEST_SKIP() << "a GPU has no threads of the host";
    const Tensor t = random(DType::f32, {100'003}, 1e-3);
    long double sum = 0;
    for (const double value : values(t)) sum += static_cast<long double>(value) * value;
    const auto two = backend::make_cpu(2);
    const Tensor again = filled(DType::f64, {1}, 1);
    EXPECT_NEAR(squares(t, 1), 1 + static_cast<double>(sum), 1e-13);
    add_squares(*two, t, again, scratch_);
    EXPECT_EQ(get(again, 0), squares(t, 1));
}

TEST_F(Optimizer, NormIsTheSameForAnyAlignment) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const std::int64_t size : {0, 1, 7, 31, 33, 1000, 8191, 8192, 8193, 100'003}) {
            const std::vector<double> of = normal(size, 1e20);  // the squares overflow float
            const std::string what = fmt::format("{} [{}]", name_of(type), size);
            const Tensor t = view(type, 1, size, 0, of), shifted = view(type, 1, size, 3, of);
            long double sum = 0;
            for (const double value : values(t)) sum += static_cast<long double>(value) * value;
            const double expected = static_cast<double>(sum), found = squares(t);
            EXPECT_NEAR(found, expected, 1e-13 * expected) << what;
            EXPECT_EQ(squares(t), found) << what << ", again";
            EXPECT_EQ(squares(shifted), found) << what << ", elsewhere";
            EXPECT_NEAR(squares(shifted, 1e40), 1e40 + expected, 1e-13 * (1e40 + expected)) << what;
            expect_kept_around(what);
        }
}

TEST_F(Optimizer, NormHasFewPartialSums) {
    for (const std::int64_t size :
         {std::int64_t{1}, std::int64_t{8192}, std::int64_t{8193}, std::int64_t{1} << 25,
          (std::int64_t{1} << 25) + 1, std::int64_t{1} << 40}) {
        const std::int64_t chunk = kernels::square_chunk(size), chunks = kernels::square_chunks(size);
        EXPECT_LE(chunks, 4096) << size;
        EXPECT_TRUE(chunk * (chunks - 1) < size && size <= chunk * chunks) << size;
    }
    // One more element than 4096 chunks of the smallest size hold: chunks are twice as long.
    constexpr std::int64_t kSize = (std::int64_t{1} << 25) + 1;
    const backend::Buffer buffer(b_, kSize * size_of(DType::bf16));
    const Tensor t(buffer.data(), DType::bf16, {kSize});
    zero(b_, t);
    double value = 1, expected = 0;
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{8192}, std::int64_t{16'383},
                                 std::int64_t{16'384}, kSize / 2, kSize - 2, kSize - 1}) {
        set(t, i, value);
        expected += value * value;
        value *= 2;
    }
    EXPECT_EQ(squares(t), expected);
}

}  // namespace
}  // namespace maestro::ops
