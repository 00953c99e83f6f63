#include "calibration/layer_probes.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "calibration/calibrate.hpp"
#include "calibration/quantiles.hpp"
#include "unit/workload/glyph_scenario.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::calibration {
namespace {

workload::Scenario layouts_scenario(const std::vector<std::string>& settings) {
    return workload::make_scenario(config::parse_deck(testing_support::input("layouts_moe.toml"), "deck",
                                                      settings, config::Command::train));
}

/// Runs the first, a middle and the last layer of a section, and compares the work with what measure()
/// counts.
void expect_the_models_work(const workload::Scenario& scenario, int section, bool equal_choices) {
    const graph::Section& s = scenario.graph.sections[section];
    const model::ModelSpec& spec = scenario.models[section];
    const parallel::MeshShape shape = workload::mesh_shape_of(scenario, s.first_stage);
    const auto backend = backend::make_cpu(1);
    model::SampleShape sample{.tokens = 48, .items = {}, .weight = 1};
    if (const model::Units units(spec); units.encodes())
        sample = {.tokens = 1, .items = {units.probe(6)}, .weight = 1};
    const std::vector<model::SampleShape> samples(3, sample);
    for (int index = 0; index < 3; ++index) {
        SCOPED_TRACE(fmt::format("{}, part {}", s.name, index));
        const int layer = index == 0 ? 0 : index == 1 ? 1 : spec.layers - 1;
        const model::Role role = workload::role_of(
            scenario, section, {.index = index, .count = 3, .first_layer = layer, .layers = 1});
        const model::Footprint counted =
            model::measure(spec, role, samples, {.traits = {1}}, parallel::make_meta_mesh(0, shape));
        PartRun run(*backend, spec, role, shape, {}, samples);
        for (int i = 0; i < 2; ++i) {  // passes leave nothing behind
            const PartRun::Passes passes = run.run();
            // The real choices of experts are not exactly equal.
            const double tolerance = equal_choices ? 1e-9 : 0.25;
            EXPECT_NEAR(passes.forward.flops, counted.forward_flops, tolerance * counted.forward_flops);
            EXPECT_NEAR(passes.backward.flops, counted.backward_flops, tolerance * counted.backward_flops);
            EXPECT_GT(passes.forward.seconds, 0);
            EXPECT_GT(passes.backward.seconds, 0);
        }
    }
}

TEST(LayerProbes, RunTheShapesOfARankOfAnyLayout) {
    for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
             {"tp=1", "cp=1", "ep=1"}, {"tp=3", "cp=2", "ep=1"}, {"tp=4", "cp=1", "ep=1"}}) {
        std::vector<std::string> settings;
        for (const std::string& degree : layout) {
            settings.push_back("section.language.layout." + degree);
            if (!degree.starts_with("ep")) settings.push_back("section.vision.layout." + degree);
        }
        const workload::Scenario scenario = layouts_scenario(settings);
        SCOPED_TRACE(fmt::format("{}", fmt::join(layout, ", ")));
        expect_the_models_work(scenario, 0, true);
        expect_the_models_work(scenario, 1, true);
    }
}

TEST(LayerProbes, RunExpertsThatRanksShare) {
    for (const char* form : {"ep=2", "etp=2"}) {
        SCOPED_TRACE(form);
        expect_the_models_work(layouts_scenario({"section.language.layout.ep=1",
                                                 std::string("section.language.layout.") + form}),
                               1, false);
    }
}

TEST(LayerProbes, WriteWhatAClusterFileReads) {
    config::Cluster cluster =
        config::parse_cluster(testing_support::input("clusters/this_machine.toml"), "file");
    cluster.device.expert_row_s = 1.5e-7;
    cluster.device.launch_s = 2.5e-6;
    cluster.device.grouped_rates = {{8, 1e9, 2e9}, {64, 3e9, 4e9}};
    cluster.device.attention_rates = {{32, 64, 1e9, 2e9, 3e9, 4e9}};
    for (const char* part : {"first", "layer", "last"})
        cluster.corrections.push_back({.section = "language",
                                       .precision = "bf16",
                                       .width = 96,
                                       .part = part,
                                       .layer = part == std::string("layer") ? 3 : 0,
                                       .rows = 1234,
                                       .length = 61.5,
                                       .tp = 2,
                                       .cp = 3,
                                       .ep = 4,
                                       .forward_s = 0.25,
                                       .backward_s = 0.5,
                                       .forward = 1.25,
                                       .backward = 0.75});
    const config::Cluster read = config::parse_cluster(to_toml(cluster, "test"), "written");
    EXPECT_EQ(read.device.expert_row_s, 1.5e-7);
    EXPECT_EQ(read.device.launch_s, 2.5e-6);
    ASSERT_EQ(read.device.grouped_rates.size(), 2u);
    EXPECT_EQ(read.device.grouped_rates[1].bf16_flops, 4e9);
    ASSERT_EQ(read.device.attention_rates.size(), 1u);
    EXPECT_EQ(read.device.attention_rates[0].length, 64);
    EXPECT_EQ(read.device.attention_rates[0].backward_bf16_flops, 4e9);
    ASSERT_EQ(read.corrections.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
        const config::Correction &a = cluster.corrections[i], &b = read.corrections[i];
        EXPECT_EQ(a.section, b.section);
        EXPECT_EQ(a.precision, b.precision);
        EXPECT_EQ(a.part, b.part);
        EXPECT_THAT((std::vector<double>{b.forward_s, b.backward_s, b.forward, b.backward, b.rows, b.length}),
                    testing::ElementsAre(a.forward_s, a.backward_s, a.forward, a.backward, a.rows, a.length));
        EXPECT_THAT((std::vector<std::int64_t>{b.width, b.layer, b.tp, b.cp, b.ep}),
                    testing::ElementsAre(a.width, a.layer, a.tp, a.cp, a.ep));
    }
}

TEST(Quantiles, AreValuesOfTheOrder) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4}), 4);
    EXPECT_EQ(median({5, 1, 3, 2}), 3);
    EXPECT_EQ(lower_quartile({9, 7, 1, 3, 8, 2, 5, 4}), 3);
    EXPECT_EQ(lower_quartile({4}), 4);
}

}  // namespace
}  // namespace maestro::calibration
