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

TEST(DeviceRates, OfGroupedGemmsMayDiffer) {
    DeviceRates with = rates();
    const Work work{.flops = 1e9, .side = 64, .kind = Work::Kind::grouped_gemm};
    EXPECT_DOUBLE_EQ(with.seconds(work), 1e-3 + 1) << "as a single GEMM";
    with.grouped_rates = {{32, 2e8, 1e9}, {128, 6e8, 2e9}};
    EXPECT_DOUBLE_EQ(with.seconds(work), 1e-3 + 1e9 / 4e8);  // halfway on a logarithmic scale
    EXPECT_DOUBLE_EQ(with.seconds({.flops = 1e9, .side = 64}), 1e-3 + 1);
    const std::vector<std::int64_t> begin{0, 10, 50};
    EXPECT_EQ(Backend::work_of(Backend::GroupedGemm{.form = Backend::GroupedGemm::Form::output,
                                                    .a = nullptr,
                                                    .b = nullptr,
                                                    .y = nullptr,
                                                    .begin = begin,
                                                    .inputs = 64,
                                                    .outputs = 64,
                                                    .in = DType::f32,
                                                    .out = DType::f32})
                  .kind,
              Work::Kind::grouped_gemm);
}

TEST(DeviceRates, OfAttentionDependOnDirectionHeadSizeAndLength) {
    DeviceRates with = rates();
    const auto rate = [&](Work::Kind kind, double head_dim, double length, DType type) {
        const Work work{.flops = 1e12, .side = head_dim, .dtype = type, .kind = kind, .length = length};
        return 1e12 / (with.seconds(work) - 1e-3);
    };
    EXPECT_NEAR(rate(Work::Kind::attention, 64, 1000, DType::f32), 1e9, 1e3) << "as a GEMM of side 64";
    with.attention_rates = {
        {64, 100, 1e9, 2e9, 3e9, 4e9}, {64, 10000, 5e9, 6e9, 7e9, 8e9}, {128, 1000, 9e9, 10e9, 11e9, 12e9}};
    EXPECT_NEAR(rate(Work::Kind::attention, 64, 100, DType::f32), 1e9, 1e3);
    EXPECT_NEAR(rate(Work::Kind::attention, 64, 1000, DType::f32), 3e9, 1e4);
    EXPECT_NEAR(rate(Work::Kind::attention, 64, 1e6, DType::bf16), 6e9, 1e4);
    EXPECT_NEAR(rate(Work::Kind::attention_backward, 64, 50, DType::f32), 1.5e9, 1e4);
    EXPECT_NEAR(rate(Work::Kind::attention_backward, 64, 10000, DType::bf16), 8e9, 1e4);
    EXPECT_NEAR(rate(Work::Kind::attention, 80, 1000, DType::f32), 3e9, 1e4);
    EXPECT_NEAR(rate(Work::Kind::attention, 100, 1000, DType::f32), 9e9, 1e4);
    EXPECT_NEAR(rate(Work::Kind::attention, 256, 1e6, DType::f32), 9e9, 1e4);
    EXPECT_DOUBLE_EQ(with.seconds({.flops = 1e9, .side = 64}), 1e-3 + 1);
}

/// A task takes the longer of what the host launches and what the device computes; where the host waits,
/// both begin again.
TEST(DeviceRates, CountTheLongerOfLaunchesAndOperations) {
    DeviceRates with{.gemm_rates = {}, .element_flops = 1, .operation_s = 0.5, .launch_s = 2};
    with.expert_row_s = 1;
    const auto meta = make_meta(with);
    meta->count({.flops = 10});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 10.5);
    for (int i = 0; i < 4; ++i) meta->count({.flops = 0});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 12.5) << "launches were hidden behind the first operation";
    meta->count(HostWork{.rows = 3});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 15.5);
    meta->count({.flops = 0});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 17.5) << "the device has nothing to do meanwhile";
    meta->reset_counts();
    for (int i = 0; i < 4; ++i) meta->count({.flops = 0});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 8);
}

TEST(DeviceRates, OfTheFullestExpertsCountInAScope) {
    DeviceRates with = rates();
    with.expert_imbalance = 1.5;
    const auto meta = make_meta(with);
    meta->count({.flops = 1e8});
    const double each = 1e-3 + 1;
    EXPECT_DOUBLE_EQ(meta->counts().seconds, each);
    {
        const Backend::FullestExperts fullest(*meta);
        meta->count({.flops = 1e8});
    }
    meta->count({.flops = 1e8});
    EXPECT_DOUBLE_EQ(meta->counts().seconds, 3.5 * each);
    EXPECT_EQ(meta->counts().flops, 3e8);
}

}  // namespace
}  // namespace maestro::backend
