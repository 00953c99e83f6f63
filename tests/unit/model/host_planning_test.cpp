// What the host plans in layers with experts, as measure() counts it by the rates of a device.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

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

}  // namespace
}  // namespace maestro::model::test
