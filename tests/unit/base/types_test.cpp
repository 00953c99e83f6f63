// Element types, views and checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/tensor.hpp"

namespace maestro {
namespace {

using testing::AllOf;
using testing::HasSubstr;

float back(float value) {
    return static_cast<float>(bf16(value));
}

TEST(Bf16, KeepsEveryValueThatItCanHold) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto exact = std::bit_cast<float>(bits << 16);
        if (std::isnan(exact))
            EXPECT_TRUE(std::isnan(back(exact)));
        else
            EXPECT_EQ(bf16(exact).bits, bits);
    }
}

TEST(Bf16, RoundsToNearestAndTiesToEven) {
    const float one = 1, step = 0x1p-7f;  // the next value above 1 is 1 + step
    EXPECT_EQ(back(one + 0.49f * step), one);
    EXPECT_EQ(back(one + 0.51f * step), one + step);
    EXPECT_EQ(back(one + 0.5f * step), one) << "a tie goes to the even neighbour";
    EXPECT_EQ(back(one + 1.5f * step), one + 2 * step) << "a tie goes to the even neighbour";
    EXPECT_EQ(back(-one - 1.5f * step), -one - 2 * step);
    const float infinite = std::numeric_limits<float>::infinity();
    EXPECT_EQ(back(infinite), infinite);
    EXPECT_EQ(back(-infinite), -infinite);
    EXPECT_EQ(back(std::numeric_limits<float>::max()), infinite) << "beyond the largest bf16";
    EXPECT_TRUE(std::isnan(back(std::bit_cast<float>(0x7f800001u)))) << "the NaN with the smallest payload";
    EXPECT_TRUE(std::signbit(back(-0.0f)));
}

TEST(Tensor, ViewsRowsOfTheSameMemory) {
    std::vector<float> data(24);
    std::iota(data.begin(), data.end(), 0.0f);
    const Tensor t(data.data(), DType::f32, {2, 3, 4});
    EXPECT_EQ(t.size(), 24);
    EXPECT_EQ(t.rows(), 6);
    EXPECT_EQ(t.columns(), 4);
    EXPECT_EQ(t.bytes(), 96u);
    EXPECT_EQ(t.describe(), "f32[2, 3, 4]");
    EXPECT_EQ(t.slice(1, 2).as<float>()[0], 12);
    EXPECT_EQ(t.reshape({6, 4}).slice(2, 4).as<float>()[0], 8);
    EXPECT_TRUE(t.slice(1, 1).empty());
    EXPECT_EQ(Tensor().rows(), 0);
    EXPECT_THROW(t.as<double>(), Error);
    EXPECT_THROW(t.reshape({5, 5}), Error);
    EXPECT_THROW(t.slice(1, 3), Error);
    EXPECT_THROW(t.slice(-1, 1), Error);
}

TEST(Check, KeepsTheExpressionThePlaceAndTheMessage) {
    const int rows = 3;
    try {
        MAESTRO_CHECK(rows == 4, "{} rows", rows);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::broken_invariant);
        EXPECT_EQ(error.scope(), Scope::this_rank);
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("rows == 4"), HasSubstr("types_test.cpp"), HasSubstr("3 rows")));
    }
    EXPECT_NO_THROW(MAESTRO_CHECK(rows == 3, "never said"));
}

}  // namespace
}  // namespace maestro
