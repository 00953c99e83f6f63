// The conversion of work into seconds by the rates of a device.
#include <gtest/gtest.h>

#include "backend/backend.hpp"

namespace maestro::backend {
namespace {

DeviceRates rates() {
    return {.gemm_rates = {{64, 1e9, 2e9}, {256, 3e9, 6e9}},
            .element_flops = 1e8,
            .bytes = 1e9,
            .operation_s = 1e-3};
}

TEST(DeviceRates, UseTheLongerOfArithmeticAndMemory) {
    EXPECT_DOUBLE_EQ(rates().seconds({.flops = 1e8, .bytes = 1e6}), 1e-3 + 1.0);
    EXPECT_DOUBLE_EQ(rates().seconds({.flops = 1e6, .bytes = 1e9}), 1e-3 + 1.0);
    EXPECT_EQ(DeviceRates{}.seconds({.flops = 1e9, .bytes = 1e9}), 0);
}

TEST(DeviceRates, DependOnTheSmallestSideAndTheType) {
    const auto rate = [](double side, DType type) {
        return 1e9 / (rates().seconds({.flops = 1e9, .bytes = 0, .side = side, .dtype = type}) - 1e-3);
    };
    EXPECT_NEAR(rate(64, DType::f32), 1e9, 1);
    EXPECT_NEAR(rate(256, DType::f32), 3e9, 1);
    EXPECT_NEAR(rate(4096, DType::bf16), 6e9, 1);
    EXPECT_NEAR(rate(128, DType::f32), 2e9, 1);  // halfway on a logarithmic scale
    EXPECT_NEAR(rate(16, DType::f32), 0.25e9, 1);
}

TEST(DeviceRates, AreUsedByMetaToCountSeconds) {
    const auto meta = make_meta(rates());
    meta->gemm(
        {nullptr, nullptr, nullptr, 256, 512, 1024, 0, 0, 0, false, false, false, DType::f32, DType::f32});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 1e-3 + 2.0 * 256 * 512 * 1024 / 3e9);
    meta->count({.flops = 1e8, .bytes = 0});
    EXPECT_NEAR(meta->counts().seconds, 2e-3 + 2.0 * 256 * 512 * 1024 / 3e9 + 1, 1e-12);
    EXPECT_EQ(make_meta()->counts().seconds, 0);
}

TEST(DeviceRates, CountWhatTheHostPlans) {
    DeviceRates with = rates();
    with.expert_row_s = 2e-6;
    with.expert_choice_s = 5e-7;
    const auto meta = make_meta(with);
    meta->count(HostWork{.rows = 1000, .choices = 300});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 1000 * 2e-6 + 300 * 5e-7);
    EXPECT_EQ(meta->counts().launches, 0);
    EXPECT_EQ(meta->counts().bytes, 0);
}

}  // namespace
}  // namespace maestro::backend
