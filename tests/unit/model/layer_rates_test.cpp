// How measure() uses the rates of a device: of what the host plans in layers with experts, of unequal
// experts, and of attention.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "model/module.hpp"
#include "unit/model/model_fixture.hpp"

namespace maestro::model::test {
namespace {

constexpr int kPlannedRows = 90;
constexpr int kExpertLayers = 2, kChosenExperts = 3;  // with experts; experts of a row

/// Seconds of the forward and the backward pass of a model of three layers, of which the first has no
/// experts, on a device that takes no time for anything but what the host plans.
std::pair<double, double> planning_s(const backend::DeviceRates& rates, const MeshShape& shape,
                                     Recompute recompute = Recompute::none) {
    ModelSpec spec = language_spec(32, 48);
    spec.layers = 3;
    use_experts(spec);
    const Role role{
        .section = "language", .inputs = {}, .loss_terms = {{}}, .markers = {}, .recompute = recompute};
    const SampleShape sample{.tokens = kPlannedRows, .items = {}, .weight = 1};
    const Footprint footprint =
        measure(spec, role, std::span(&sample, 1), {.rates = rates}, make_meta_mesh(0, shape));
    return {footprint.forward_s, footprint.backward_s};
}

TEST(HostPlanning, SortsTheChoicesOfARankWithAllExpertsOnce) {
    const backend::DeviceRates rates{.gemm_rates = {}, .expert_row_s = 7, .expert_choice_s = 1};
    const MeshShape shape{.kv_heads = 2, .has_experts = true};
    const double choices = kExpertLayers * kPlannedRows * kChosenExperts;
    EXPECT_EQ(planning_s(rates, shape), (std::pair{choices, 0.0}));
    // The backward pass computes the forward pass again.
    EXPECT_EQ(planning_s(rates, shape, Recompute::layer), (std::pair{choices, choices}));
}

TEST(HostPlanning, PlansTheRowsOfAllRanksThatShareExperts) {
    const MeshShape shape{
        .degrees = {.cp = 1, .tp = 2}, .kv_heads = 2, .has_experts = true, .experts = {.ep = 2, .etp = 1}};
    EXPECT_EQ(planning_s({.gemm_rates = {}, .expert_row_s = 1}, shape),
              (std::pair{1.0 * kExpertLayers * kPlannedRows, 0.0}));
    // A row goes to a rank unless all three choices are among the six experts of the other one.
    const double share = 1 - 6.0 * 5 * 4 / (12.0 * 11 * 10);
    const double received = 2 * std::round(kPlannedRows / 2 * share),
                 choices = kExpertLayers * received * kChosenExperts;
    EXPECT_EQ(planning_s({.gemm_rates = {}, .expert_choice_s = 1}, shape), (std::pair{choices, choices}));
}

/// Seconds of a forward and a backward pass of the model above in which two ranks share the experts.
double shared_s(double imbalance, const backend::DeviceRates& rates, double bandwidth) {
    ModelSpec spec = language_spec(32, 48);
    spec.layers = 3;
    use_experts(spec);
    const Role role{.section = "language", .inputs = {}, .loss_terms = {{}}, .markers = {}};
    const SampleShape sample{.tokens = kPlannedRows, .items = {}, .weight = 1};
    const MeshShape shape{
        .degrees = {.cp = 1, .tp = 2}, .kv_heads = 2, .has_experts = true, .experts = {.ep = 2, .etp = 1}};
    const MeshLinks links{.ep = {.latency_s = 0, .bandwidth = bandwidth}, .expert_imbalance = imbalance};
    const Footprint footprint =
        measure(spec, role, std::span(&sample, 1), {.rates = rates}, make_meta_mesh(0, shape, links));
    return footprint.forward_s + footprint.backward_s;
}

TEST(ExpertImbalance, LengthensWhatTheFullestRankComputesAndExchanges) {
    const auto computed_s = [](double imbalance) {
        return shared_s(imbalance, {.gemm_rates = {}, .element_flops = 1e6, .expert_imbalance = imbalance},
                        0);
    };
    const double more_s = computed_s(2) - computed_s(1);
    EXPECT_GT(more_s, 0.1 * computed_s(1));
    EXPECT_LT(more_s, 0.9 * computed_s(1)) << "attention and other layers take as long as before";
    EXPECT_NEAR(computed_s(3) - computed_s(2), more_s, 1e-9 * more_s);
    EXPECT_NEAR(shared_s(1.5, {}, 1e6), 1.5 * shared_s(1, {}, 1e6), 1e-9);
    // Where one rank has all experts, it has all rows, however they are divided.
    const MeshShape alone{.kv_heads = 2, .has_experts = true};
    EXPECT_EQ(planning_s({.gemm_rates = {}, .element_flops = 1e6, .expert_imbalance = 2}, alone),
              planning_s({.gemm_rates = {}, .element_flops = 1e6}, alone));
}

TEST(AttentionRates, CountByTheLengthOfSequences) {
    const ModelSpec spec = language_spec(32, 48);  // two layers with four heads of eight channels
    const Role role{.section = "language", .inputs = {}, .loss_terms = {{}}, .markers = {}};
    const std::vector<SampleShape> samples(3, {.tokens = 64, .items = {}, .weight = 1});
    const backend::DeviceRates rates{.gemm_rates = {},
                                     .attention_rates = {{8, 16, 1e6, 1, 1e6, 1}, {8, 64, 2e6, 1, 4e6, 1}}};
    const Footprint footprint = measure(spec, role, samples, {.rates = rates});
    // A multiply-add of each channel for each pair of a query and a key, of which a causal mask has half.
    const double gemm = 2.0 * 2 * 3 * 4 * 8 * (64 * 64 / 2);
    EXPECT_NEAR(footprint.forward_s, 2 * gemm / 2e6, 1e-9);
    EXPECT_NEAR(footprint.backward_s, 5 * gemm / 4e6, 1e-9);
}

}  // namespace
}  // namespace maestro::model::test
