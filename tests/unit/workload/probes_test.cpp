// Probes run few layers of a stage: compared with runs of all of them.
#include "workload/probes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "unit/workload/glyph_scenario.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::workload {
namespace {

void expect_near(double value, double expected) {
    EXPECT_NEAR(value, expected, 1e-9 * std::abs(expected));
}

void expect_same(const collective::Traffic& sent, const collective::Traffic& expected) {
    EXPECT_EQ(sent.messages, expected.messages);
    EXPECT_EQ(sent.bytes, expected.bytes);
    expect_near(sent.seconds, expected.seconds);
}

void expect_same(const model::Footprint& footprint, const model::Footprint& expected) {
    EXPECT_EQ(footprint.saved, expected.saved);
    EXPECT_EQ(footprint.scratch, expected.scratch);
    EXPECT_EQ(footprint.parameters, expected.parameters);
    EXPECT_EQ(footprint.gradients, expected.gradients);
    EXPECT_EQ(footprint.optimizer, expected.optimizer);
    EXPECT_EQ(footprint.frozen_shard, expected.frozen_shard);
    EXPECT_EQ(footprint.sync_scratch, expected.sync_scratch);
    EXPECT_EQ(footprint.host.saved, expected.host.saved);
    EXPECT_EQ(footprint.host.scratch, expected.host.scratch);
    expect_near(footprint.forward_flops, expected.forward_flops);
    expect_near(footprint.backward_flops, expected.backward_flops);
    expect_near(footprint.forward_s, expected.forward_s);
    expect_near(footprint.backward_s, expected.backward_s);
    expect_same(footprint.tp, expected.tp);
    expect_same(footprint.cp, expected.cp);
    expect_same(footprint.ep, expected.ep);
    ASSERT_EQ(footprint.group_layers, expected.group_layers);
    for (std::size_t group = 0; group < expected.group_layers.size(); ++group) {
        expect_near(footprint.needed_s(group), expected.needed_s(group));
        expect_near(footprint.final_s(group), expected.final_s(group));
    }
}

/// Other times of collectives are other probes, and equal ones the same.
TEST(Probes, DependOnTheTimesOfCollectives) {
    Scenario scenario = glyph_scenario({"section.language.layout.tp=2"});
    scenario.cluster = config::parse_cluster(testing_support::input("clusters/h100.toml"), "cluster");
    Probes probes;
    const auto seconds = [&](const std::vector<collective::CollectiveRow>& rows) {
        scenario.cluster->collectives = collective::CollectiveTimes(rows);
        Probe probe{.spec = scenario.models[1],
                    .role = role_of(scenario, 1),
                    .shape = mesh_shape_of(scenario, 1),
                    .links = mesh_links_of(scenario, 1)};
        probe.options.rates = rates_of(scenario.cluster->device);
        probe.add({.tokens = 64, .items = {}, .weight = 1});
        return probes.footprint(probe).tp.seconds;
    };
    const collective::CollectiveRow gather{.ranks = 2, .bytes = 1, .seconds = 1};
    collective::CollectiveRow slower = gather;
    slower.seconds = 2;
    const double by_link = seconds({}), measured = seconds({gather});
    const std::int64_t runs = probes.runs();
    EXPECT_EQ(seconds({gather}), measured);
    EXPECT_EQ(seconds({}), by_link);
    EXPECT_EQ(probes.runs(), runs);
    EXPECT_GT(measured, by_link);
    EXPECT_GT(seconds({slower}), 1.9 * measured);
    EXPECT_EQ(probes.runs(), runs + 1);
}

TEST(Probes, AreThoseOfAllLayers) {
    const std::string vision = "model.glyph-vision.", language = "model.glyph-language.";
    const std::vector<std::string> experts = {language + "experts=4", language + "experts_per_token=2",
                                              language + "expert_mlp=32", language + "dense_layers=2"};
    const auto with = [](std::vector<std::string> a, const std::vector<std::string>& b) {
        a.insert(a.end(), b.begin(), b.end());
        return a;
    };
    const std::vector<std::vector<std::string>> cases = {
        {},
        {"train.recompute=layer"},
        {"train.recompute=cheap", "section.language.recompute_layers=4"},
        {"section.language.recompute=layer", "section.language.recompute_layers=5"},
        {"section.language.layout.tp=2", "section.vision.layout.tp=3"},
        {"section.language.layout.cp=2", "section.vision.layout.cp=2"},
        {"section.language.layout.pp=3", "section.vision.layout.pp=2", "section.vision.layout.dp=1"},
        {"section.language.layout.pp=2", "section.language.layout.chunks=2"},
        {"section.vision.mode=forward", "section.vision.weights=random"},
        {"section.language.freeze=[\"embedding\"]"},
        {vision + "deepstack=[1, 2, 5]"},
        {vision + "deepstack=[0, 6]", "train.recompute=layer", "section.language.layout.pp=2"},
        with(experts, {}),
        with(experts,
             {"section.language.layout.ep=3", "section.language.layout.dp=3", language + "experts=6"}),
        with(experts,
             {"section.language.layout.tp=2", "section.language.layout.etp=2", "train.recompute=layer"}),
        with(experts, {"section.language.recompute=layer", "section.language.recompute_layers=4"}),
        {"run.precision=bf16", language + "tie_embeddings=false"},
    };
    for (const std::vector<std::string>& settings : cases) {
        SCOPED_TRACE(settings.empty() ? "" : settings.back());
        std::vector<std::string> deep = {vision + "layers=7", language + "layers=9"};
        deep.insert(deep.end(), settings.begin(), settings.end());
        Scenario scenario = glyph_scenario(deep);
        scenario.cluster = config::parse_cluster(testing_support::input("clusters/h100.toml"), "cluster");
        scenario.cluster->device.expert_imbalance = 1.5;
        Probes probes;
        for (int stage = 0; stage < static_cast<int>(scenario.graph.stages.size()); ++stage) {
            SCOPED_TRACE(scenario.graph.stage_name(stage));
            Probe probe{.spec = scenario.models[scenario.graph.stages[stage].section],
                        .role = role_of(scenario, stage),
                        .shape = mesh_shape_of(scenario, stage),
                        .links = mesh_links_of(scenario, stage)};
            probe.options.rates = rates_of(scenario.cluster->device);
            probe.options.worst_case = probe.shape.degrees.cp > 1;
            const model::Units units(probe.spec);
            std::vector<model::SampleShape> shapes;
            for (const int size : {3, 5, 5, 2}) {
                shapes.push_back(
                    units.encodes()
                        ? model::SampleShape{.tokens = 1, .items = {units.probe(size)}, .weight = 1}
                        : model::SampleShape{.tokens = 7 * size, .items = {}, .weight = 1});
                probe.add(shapes.back());
            }
            expect_same(probes.footprint(probe),
                        model::measure(probe.spec, probe.role, shapes, probe.options,
                                       parallel::make_meta_mesh(probe.rank, probe.shape, probe.links)));
        }
    }
}

}  // namespace
}  // namespace maestro::workload
