#include "workload/task_factors.hpp"

#include <gtest/gtest.h>

#include "unit/workload/glyph_scenario.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/probes.hpp"

namespace maestro::workload {
namespace {

constexpr int kLanguageSection = 1;

/// A layer takes 2 s and is measured at `layer` times as much, the first and the last part take 3 s and 7 s
/// and are measured at `ends` times as much; backward passes take twice all of that.
void add_shape(config::Cluster& cluster, const config::Correction& shape, double layer, double ends) {
    const auto add = [&](const char* part, double seconds, double factor) {
        config::Correction of = shape;
        of.part = part;
        of.forward_s = seconds;
        of.backward_s = 2 * seconds;
        of.forward = factor;
        of.backward = 2 * factor;
        cluster.corrections.push_back(of);
    };
    add("first", 3, ends);
    add("layer", 2, layer);
    add("last", 7, ends);
}

struct Case {
    Scenario scenario = glyph_scenario();
    model::ModelSpec spec = scenario.models[kLanguageSection];
    config::Correction shape{.section = "language",
                             .precision = "fp32",
                             .width = spec.width,
                             .part = {},
                             .rows = 400,
                             .length = 100};
    config::Cluster cluster = {};

    TaskFactors of(const model::Stage& stage, TaskShape task = {.rows = 400, .length = 100}) const {
        return task_factors(cluster, spec, role_of(scenario, kLanguageSection, stage), task);
    }
};

TEST(TaskFactors, WeighThePartsOfAStageByTheirTime) {
    Case a;
    a.spec.layers = 5;
    add_shape(a.cluster, a.shape, 1.5, 3);
    // Of the whole model: five layers, and both ends without the layer that each was measured with.
    const double predicted = 5 * 2 + (3 - 2) + (7 - 2), measured = 5 * 3 + (9 - 3) + (21 - 3);
    EXPECT_DOUBLE_EQ(a.of({}).phases[0], measured / predicted);
    EXPECT_DOUBLE_EQ(a.of({}).phases[1], 2 * measured / predicted);
    EXPECT_TRUE(a.of({}).measured);
    EXPECT_DOUBLE_EQ(a.of({.index = 0, .count = 3, .first_layer = 0, .layers = 2}).phases[0],
                     (3.0 + 9) / (2 + 3));
    EXPECT_DOUBLE_EQ(a.of({.index = 1, .count = 3, .first_layer = 2, .layers = 1}).phases[0], 1.5);
    EXPECT_DOUBLE_EQ(a.of({.index = 2, .count = 3, .first_layer = 3, .layers = 2}).phases[0],
                     (3.0 + 21) / (2 + 7));
}

TEST(TaskFactors, AreThoseOfTheNearestShape) {
    Case a;
    add_shape(a.cluster, a.shape, 2, 2);
    config::Correction other = a.shape;
    other.length = 400;
    add_shape(a.cluster, other, 3, 3);
    other.tp = 4;
    add_shape(a.cluster, other, 5, 5);
    EXPECT_DOUBLE_EQ(a.of({}, {.rows = 400, .length = 190}).phases[0], 2);
    EXPECT_DOUBLE_EQ(a.of({}, {.rows = 400, .length = 210}).phases[0], 3);
    EXPECT_DOUBLE_EQ(a.of({}, {.rows = 400, .length = 400, .tp = 3}).phases[0], 5);
    EXPECT_TRUE(a.of({}, {.rows = 700, .length = 60}).measured);
    EXPECT_FALSE(a.of({}, {.rows = 900, .length = 100}).measured) << "more than twice the rows";
    EXPECT_FALSE(a.of({}, {.rows = 400, .length = 49}).measured) << "less than half the length";
    EXPECT_FALSE(a.of({}, {.rows = 400, .length = 100, .cp = 2}).measured) << "another layout";
}

TEST(TaskFactors, AreOneForWhatWasNotMeasured) {
    Case a;
    EXPECT_EQ(a.of({}).phases, (std::array<double, 2>{1, 1}));
    add_shape(a.cluster, a.shape, 2, 2);
    EXPECT_EQ(a.of({}).phases, (std::array<double, 2>{2, 4}));
    for (const auto change : std::initializer_list<void (*)(config::Correction&)>{
             [](config::Correction& c) { c.section = "vision"; },
             [](config::Correction& c) { c.precision = "bf16"; }, [](config::Correction& c) { ++c.width; },
             [](config::Correction& c) {
                 if (c.part == "layer") c.layer = 1;  // of another kind
             }}) {
        Case b;
        add_shape(b.cluster, b.shape, 2, 2);
        for (config::Correction& c : b.cluster.corrections) change(c);
        EXPECT_EQ(b.of({}).phases, (std::array<double, 2>{1, 1}));
        EXPECT_FALSE(b.of({}).measured);
    }
}

/// The layers of a run's stage, between these shares of the depth.
config::Correction stage_of(const config::Correction& shape, double begin, double end, double seconds,
                            double factor) {
    config::Correction of = shape;
    of.part = "stage";
    of.begin = begin;
    of.end = end;
    of.forward_s = seconds;
    of.backward_s = 2 * seconds;
    of.forward = factor;
    of.backward = 2 * factor;
    return of;
}

TEST(TaskFactors, OfARunAreThoseOfItsStagesAtTheSameDepth) {
    Case a;
    a.spec.layers = 6;  // whatever number the run's model had
    a.cluster.corrections = {stage_of(a.shape, 0, 0.5, 3, 2), stage_of(a.shape, 0.5, 1, 5, 7)};
    EXPECT_DOUBLE_EQ(a.of({.index = 0, .count = 2, .first_layer = 0, .layers = 3}).phases[0], 2);
    EXPECT_DOUBLE_EQ(a.of({.index = 1, .count = 2, .first_layer = 3, .layers = 3}).phases[1], 14);
    EXPECT_DOUBLE_EQ(a.of({.index = 2, .count = 3, .first_layer = 4, .layers = 2}).phases[0], 7);
    EXPECT_DOUBLE_EQ(a.of({}).phases[0], (3 * 2.0 + 5 * 7) / (3 + 5));
    // Two of the first one's three layers, and one of the other's.
    EXPECT_DOUBLE_EQ(a.of({.index = 1, .count = 3, .first_layer = 1, .layers = 3}).phases[0],
                     (2.0 / 3 * 3 * 2 + 1.0 / 3 * 5 * 7) / (2.0 / 3 * 3 + 1.0 / 3 * 5));
    EXPECT_TRUE(a.of({}).measured);
}

TEST(TaskFactors, OfARunGoBeforeThoseOfParts) {
    Case a;
    add_shape(a.cluster, a.shape, 2, 2);
    config::Correction other = a.shape;
    other.tp = 4;
    add_shape(a.cluster, other, 5, 5);
    other = a.shape;
    other.rows = 500;
    a.cluster.corrections.push_back(stage_of(other, 0, 1, 1, 3));
    EXPECT_DOUBLE_EQ(a.of({}).phases[0], 3) << "of the shape itself there are only parts";
    EXPECT_DOUBLE_EQ(a.of({}, {.rows = 100, .length = 100}).phases[0], 2) << "the run had other shapes";
    EXPECT_DOUBLE_EQ(a.of({}, {.rows = 400, .length = 100, .tp = 4}).phases[0], 5) << "and layouts";
    EXPECT_TRUE(a.of({}, {.rows = 400, .length = 100, .tp = 4}).measured);
}

TEST(TaskFactors, HaveTheMeanLengthOfRows) {
    const parallel::MeshShape mesh{.degrees = {.cp = 2, .tp = 3}, .experts = {.ep = 2, .etp = 3}};
    const std::vector<std::int64_t> lengths{10, 30};
    const TaskShape shape = task_shape(lengths, mesh);
    EXPECT_EQ(shape.rows, 40);
    EXPECT_EQ(shape.length, (10.0 * 10 + 30 * 30) / 40);
    EXPECT_EQ(shape.tp, 3);
    EXPECT_EQ(shape.cp, 2);
    EXPECT_EQ(shape.ep, 6);
}

/// What ranks send to each other was not measured, and takes as long as before.
TEST(TaskFactors, ScaleWhatTheDeviceComputes) {
    const Case a;
    const auto seconds = [&](std::array<double, 2> factors, double latency_s) {
        Probe probe{.spec = a.spec,
                    .role = role_of(a.scenario, kLanguageSection, model::Stage{}),
                    .shape = {.degrees = {.cp = 1, .tp = 2}, .kv_heads = a.spec.kv_heads()},
                    .links = {.tp = {.latency_s = latency_s, .bandwidth = 0}}};
        probe.options.rates = {.gemm_rates = {}, .element_flops = 1e9};
        probe.options.factors = factors;
        probe.add({.tokens = 50, .items = {}, .weight = 1});
        Probes probes;
        const model::Footprint footprint = probes.footprint(probe);
        EXPECT_LE(footprint.needed_s(footprint.group_layers.size() - 1), footprint.forward_s);
        return std::pair(footprint.forward_s, footprint.backward_s);
    };
    const auto [forward_s, backward_s] = seconds({1, 1}, 0);
    const auto [slow_forward_s, slow_backward_s] = seconds({1, 1}, 1);
    const auto [scaled_forward_s, scaled_backward_s] = seconds({3, 5}, 1);
    EXPECT_GT(slow_forward_s, forward_s + 1);
    EXPECT_NEAR(scaled_forward_s - slow_forward_s, 2 * forward_s, 1e-9);
    EXPECT_NEAR(scaled_backward_s - slow_backward_s, 4 * backward_s, 1e-9);
}

}  // namespace
}  // namespace maestro::workload
