#include "safetensors/convert.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/dtype.hpp"

namespace maestro::safetensors {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// IEEE 754 binary16 by its definition.
double f16_value(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Convert, EveryF16IsExactAndComesBack) {
    for (int i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        const float value = f16_to_f32(bits);
        if ((bits & 0x7c00) == 0x7c00) {
            EXPECT_EQ(std::isinf(value), (bits & 1023) == 0) << bits;
            EXPECT_EQ(std::isnan(value), (bits & 1023) != 0) << bits;
        } else {
            ASSERT_EQ(value, f16_value(bits)) << bits;
            ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
        }
        if (!std::isnan(value)) {
            ASSERT_EQ(f32_to_f16(value), bits) << bits;
        }
    }
}

/// Between two neighbours of F16: below the middle down, above it up, in the middle to the even one.
TEST(Convert, RoundsToTheNearestF16) {
    for (std::uint16_t low = 0; low < 0x7bff; ++low) {
        const auto high = static_cast<std::uint16_t>(low + 1);
        const auto middle = static_cast<float>((f16_value(low) + f16_value(high)) / 2);  // exact in f32
        const std::uint16_t even = low % 2 == 0 ? low : high;
        ASSERT_EQ(f32_to_f16(middle), even) << low;
        ASSERT_EQ(f32_to_f16(-middle), even | 0x8000) << low;
        ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), low) << low;
        ASSERT_EQ(f32_to_f16(std::nextafter(middle, kInf)), high) << low;
    }
    EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
    EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00) << "halfway between the largest number and 2^16";
    EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
    EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Convert, RoundsBf16AndF64ToNearestEven) {
    const std::vector<float> values = {1.0f,           0x1.01p0f, 0x1.03p0f, 0x1.010002p0f,
                                       -0x1.02fffep0f, 0x1p-133f, 0.0f};
    const std::vector<std::uint16_t> expected = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf81, 0x0001, 0};
    std::vector<std::byte> stored(2 * values.size());
    EXPECT_EQ(from_f32(StoredType::bf16, values.data(), 7, stored.data()), -1);
    EXPECT_EQ(std::memcmp(stored.data(), expected.data(), stored.size()), 0);

    const std::vector<double> doubles = {1 + 0x1p-24, 1 + 0x1.8p-23, -1e-60, 0x1.fffffep127};
    std::vector<float> rounded(4);
    EXPECT_EQ(to_f32(StoredType::f64, reinterpret_cast<const std::byte*>(doubles.data()), 4, rounded.data()),
              -1);
    EXPECT_EQ(rounded, (std::vector<float>{1.0f, 1 + 0x1p-22f, -0.0f, 0x1.fffffep127f}));
}

template <class T>
std::int64_t wrong_in(StoredType type, const std::vector<T>& elements) {
    std::vector<float> values(elements.size());
    return to_f32(type, reinterpret_cast<const std::byte*>(elements.data()),
                  static_cast<std::int64_t>(elements.size()), values.data());
}

TEST(Convert, FindsTheFirstThatIsNotFinite) {
    EXPECT_EQ(wrong_in<float>(StoredType::f32, {1, 2, 3}), -1);
    EXPECT_EQ(wrong_in<float>(StoredType::f32, {1, 2, -kInf, kNan}), 2);
    EXPECT_EQ(wrong_in<float>(StoredType::f32, {-kNan}), 0);
    EXPECT_EQ(wrong_in<double>(StoredType::f64, {1e38, -1e39}), 1) << "too large for f32";
    EXPECT_EQ(wrong_in<std::uint16_t>(StoredType::bf16, {0x7f7f, 0xff80}), 1);
    EXPECT_EQ(wrong_in<std::uint16_t>(StoredType::f16, {0x7bff, 0xfe00}), 1);
    std::vector<float> many(1000, -3.0f);
    many[777] = kNan;
    EXPECT_EQ(wrong_in(StoredType::f32, many), 777);
}

TEST(Convert, FindsTheFirstThatRoundingMakesInfinite) {
    std::vector<std::byte> stored(64);
    const auto wrong = [&](StoredType type, const std::vector<float>& values) {
        return from_f32(type, values.data(), static_cast<std::int64_t>(values.size()), stored.data());
    };
    constexpr float kLargest = std::numeric_limits<float>::max();
    EXPECT_EQ(wrong(StoredType::f32, {kLargest, -kLargest}), -1);
    EXPECT_EQ(wrong(StoredType::f32, {1, kNan}), 1);
    EXPECT_EQ(wrong(StoredType::bf16, {0x1.fep127f, kLargest}), 1);
    EXPECT_EQ(wrong(StoredType::bf16, {1, 2, -kNan}), 2);
    EXPECT_EQ(wrong(StoredType::f16, {65504, -65520}), 1);
    EXPECT_EQ(wrong(StoredType::f16, {kNan}), 0);
}

}  // namespace
}  // namespace maestro::safetensors
