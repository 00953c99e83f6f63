// The costs of stages that follow from those of the layers of a section, compared with the stages' own.
#include "workload/layer_costs.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "support/decks.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "unit/workload/glyph_scenario.hpp"
#include "workload/cost_model.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"

namespace maestro::workload {
namespace {

class LayerCostsTest : public data::SampleFileTest {
protected:
    void SetUp() override {
        data::SampleArrays arrays;
        std::vector<std::int32_t> text(300, 'a');
        arrays.add(text);
        arrays.add({257, 256, 'x', 258}, {{100, 30}});
        arrays.add({257, 256, 'x', 256, 'y', 258}, {{160, 160}, {170, 150}});
        text.resize(45);
        arrays.add(text);
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
    }
    Scenario scenario(const std::string& cluster, std::vector<std::string> settings) const {
        settings.insert(settings.end(), {"model.glyph-vision.layers=7", "model.glyph-language.layers=9",
                                         "section.language.layout.dp=1"});
        const std::string text = testing_support::input("clusters/" + cluster + ".toml");
        Scenario scenario = on_cluster(glyph_scenario(settings), config::parse_cluster(text, cluster));
        scenario.markers = file_->markers();
        return scenario;
    }
    /// Compares what the layers of each of three stages of a section take with what the stage does: no stage
    /// takes less, and at least `share` of it is that of its layers.
    void compare(const std::string& cluster, int section, std::vector<std::string> settings, double share) {
        const Scenario whole = scenario(cluster, settings);
        settings.push_back(std::string("section.") + (section == 0 ? "vision" : "language") + ".layout.pp=3");
        const Scenario stages = scenario(cluster, settings);
        const SampleTable table = table_of(whole, *file_);
        std::vector<std::int64_t> samples(static_cast<std::size_t>(table.size()));
        std::iota(samples.begin(), samples.end(), 0);
        const int only = whole.graph.stage_of(section, 0);
        const parallel::MeshLinks links = mesh_links_of(whole, only);
        const SampleWeights weights(
            table, section, samples,
            StageProbe(whole, section, only, links, table.lengths(section), probes_).grid());
        const LayerCosts costs(whole, section, links, table, probes_, weights);
        const std::vector<schedule::SampleCost> expected =
            sample_costs(stages, table_of(stages, *file_), probes_);
        for (int k = 0; k < 3; ++k) {
            const int stage = stages.graph.stage_of(section, k);
            std::vector<double> seconds(samples.size(), 0.0);
            costs.add_seconds(stages.layers[stage], k, 3, seconds);
            for (std::size_t i = 0; i < samples.size(); ++i) {
                const schedule::TaskCost& cost = expected[i].stages[static_cast<std::size_t>(stage)];
                const double stage_s = cost.active ? cost.forward_s + cost.backward_s : 0;
                EXPECT_LE(seconds[i], stage_s * (1 + 1e-9)) << "stage " << k << ", sample " << i;
                EXPECT_GE(seconds[i], share * stage_s) << "stage " << k << ", sample " << i;
            }
        }
    }
    std::unique_ptr<data::SampleFile> file_;
    Probes probes_;
};

/// Forward and backward of the first, a middle and the last stage; also where ranks share sequences, and
/// where backward passes end at the first layer that is trained. On a GPU, the host of each stage prepares
/// its first operations besides, which is most of the time of such small stages.
TEST_F(LayerCostsTest, AreThoseOfTheStages) {
    const std::vector<std::vector<std::string>> cases = {
        {},
        {"train.recompute=layer"},
        {"section.vision.layout.cp=2", "section.language.layout.cp=2"},
        {"section.vision.mode=forward", "section.vision.weights=random",
         "section.language.freeze=[\"embedding\", \"layers.0-4\"]"}};
    for (const std::vector<std::string>& settings : cases)
        for (const int section : {0, 1}) {
            SCOPED_TRACE((settings.empty() ? "" : settings.back() + ", ") + "section " +
                         std::to_string(section));
            compare("this_machine", section, settings, 0.98);
            compare("h100", section, settings, 0);
        }
}

}  // namespace
}  // namespace maestro::workload
