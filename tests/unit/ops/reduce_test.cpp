// Reductions against sums that are taken one after another in the accumulation type: order and rounding must
// be equal.
#include "ops/reduce.hpp"

#include "kernels/reduce.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

class Reduce : public testing_support::Views {
protected:
    /// Returns the sums in the order of the parts, rounded to their type at the end.
    std::vector<double> sums_of(const std::vector<Tensor>& parts) {
        std::vector<double> wide = values(parts[0]);
        std::vector<float> narrow(wide.begin(), wide.end());
        for (std::size_t p = 1; p < parts.size(); ++p) {
            const std::vector<double> next = values(parts[p]);
            for (std::size_t i = 0; i < next.size(); ++i) {
                wide[i] += next[i];
                narrow[i] += static_cast<float>(next[i]);
            }
        }
        if (parts[0].dtype == DType::f64) return wide;
        std::vector<double> rounded;
        for (const float value : narrow)
            rounded.push_back(parts[0].dtype == DType::f32
                                  ? static_cast<double>(value)
                                  : static_cast<double>(static_cast<float>(bf16(value))));
        return rounded;
    }
    std::vector<double> maxima_of(const std::vector<Tensor>& parts) {
        std::vector<double> largest = values(parts[0]);
        for (const Tensor& part : parts) {
            const std::vector<double> next = values(part);
            for (std::size_t i = 0; i < next.size(); ++i) largest[i] = std::max(largest[i], next[i]);
        }
        return largest;
    }
};

TEST_F(Reduce, AddsPartsInOrderAndRoundsOnce) {
    constexpr std::int64_t kSize = 70'001;  // enough for several threads, and the last block is partial
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        std::vector<Tensor> parts;
        for (int p = 0; p < 3; ++p) parts.push_back(random(type, {kSize}, 5));
        const Tensor sum = filled(type, {kSize}, kPoison);
        reduce(b_, parts, Reduction::sum, sum);
        EXPECT_EQ(values(sum), sums_of(parts)) << name_of(type);
        const std::vector<double> largest = maxima_of(parts);
        reduce(b_, parts, Reduction::max, parts[1]);  // the result may be one of the parts
        EXPECT_EQ(values(parts[1]), largest) << name_of(type);
    }
}

TEST_F(Reduce, WorksForAnySizeAndAlignment) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const std::int64_t size : {0, 1, 5, 31, 33, 127, 1000, 4097})
            for (const std::int64_t shift : {0, 1, 8})
                for (const std::int64_t other : {0, 1}) {  // the last part may be aligned differently
                    const std::string what =
                        fmt::format("{} [{}] from {} and {}", name_of(type), size, shift, shift + other);
                    std::vector<Tensor> parts;
                    for (int p = 0; p < 4; ++p)
                        parts.push_back(view(type, 1, size, shift + (p == 3 ? other : 0), normal(size, 4)));
                    const Tensor sum = view(type, 1, size, shift), largest = view(type, 1, size, shift);
                    reduce(b_, parts, Reduction::sum, sum);
                    reduce(b_, parts, Reduction::max, largest);
                    EXPECT_EQ(values(sum), sums_of(parts)) << what;
                    EXPECT_EQ(values(largest), maxima_of(parts)) << what;
                    const std::vector<double> expected = sums_of(parts);
                    reduce(b_, parts, Reduction::sum, parts[2]);
                    EXPECT_EQ(values(parts[2]), expected) << what << ", in place";
                    expect_kept_around(what);
                }
}

TEST_F(Reduce, WorksForAnyNumberOfParts) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const int count : {1, 2, 5, 6, 63, 64, 65, 300}) {
            std::vector<Tensor> parts;
            for (int p = 0; p < count; ++p) parts.push_back(view(type, 1, 37, 0, normal(37)));
            const Tensor result = view(type, 1, 37, 0);
            for (const Reduction how : {Reduction::sum, Reduction::max}) {
                reduce(b_, parts, how, result);
                EXPECT_EQ(values(result), how == Reduction::sum ? sums_of(parts) : maxima_of(parts))
                    << name_of(type) << ", " << count;
            }
            expect_kept_around(name_of(type));
        }
}

TEST_F(Reduce, RefusesMorePartsThanAKernelTakes) {
    const Tensor one = filled(DType::bf16, {3}, 1), result = filled(DType::bf16, {3}, kPoison);
    std::vector<Tensor> parts(kernels::kMaxParts, one);
    reduce(b_, parts, Reduction::sum, result);
    EXPECT_EQ(values(result), std::vector<double>(3, 4000));
    parts.push_back(one);
    if (testing_support::kOnGpu)
        EXPECT_THROW(reduce(b_, parts, Reduction::sum, result), Error);
    else
        reduce(b_, parts, Reduction::sum, result);
}

TEST_F(Reduce, NaNAndInfinitiesArePropagated) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        const std::vector<Tensor> parts{view(type, 1, 5, 0, {kPoison, 1, -kInf, -kInf, 1}),
                                        view(type, 1, 5, 0, {1, kPoison, -kInf, 2, kInf}),
                                        view(type, 1, 5, 0, {2, 3, -kInf, -kInf, 1})};
        const Tensor result = view(type, 1, 5, 0, {0, 0, 0, 0, 0});
        for (const Reduction how : {Reduction::sum, Reduction::max}) {
            reduce(b_, parts, how, result);
            EXPECT_TRUE(std::isnan(get(result, 0)) && std::isnan(get(result, 1)));
            EXPECT_EQ(get(result, 2), -kInf);
            EXPECT_EQ(get(result, 3), how == Reduction::sum ? -kInf : 2);
            EXPECT_EQ(get(result, 4), kInf);
        }
    }
}

}  // namespace
}  // namespace maestro::ops
