// Scenarios of decks and of other scenarios: what is refused, and which model code runs again.
#include "workload/scenario.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "schedule/policies/policies.hpp"
#include "support/decks.hpp"
#include "support/errors.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "unit/workload/glyph_scenario.hpp"
#include "workload/cost_model.hpp"
#include "workload/costs.hpp"
#include "workload/layer_costs.hpp"
#include "workload/layout.hpp"
#include "workload/memory.hpp"
#include "workload/mixing.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"
#include "workload/step_end.hpp"
#include "workload/training_samples.hpp"

namespace maestro::workload {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::edited;
using testing_support::input;

Scenario scenario_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return make_scenario(config::parse_deck(text, "deck.toml", overrides, config::Command::train,
                                            config::Times::model, [](const config::Deck& deck, bool sound) {
                                                return check_scenario(deck, config::Times::model, sound);
                                            }));
}

std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return testing_support::refusal_by([&] { scenario_of(text, overrides); });
}

TEST(Scenario, OfEveryInputIsGood) {
    EXPECT_EQ(scenario_of(input("vlm_glyphs.toml")).graph.world, 4);
    EXPECT_EQ(scenario_of(input("distill.toml")).graph.world, 3);
    EXPECT_EQ(scenario_of(input("glyphs_large.toml")).models[1].kind, model::ModelSpec::Kind::language);
    EXPECT_EQ(scenario_of(input("vlm_glyphs.toml"), {"section.language.layout.dp=1"}).graph.world, 2);
}

TEST(Scenario, RefusalsNameThePlaceOfTheirKey) {
    EXPECT_THAT(refusal(edited("dp = 1", "dp = 2")), HasSubstr("fanout"));
    EXPECT_THAT(refusal(edited("from = \"vision\"", "from = \"audio\"")),
                AllOf(testing::StartsWith("deck.toml:85:8: edge.audio-language.from: "),
                      HasSubstr("there is no section 'audio'")));
    EXPECT_THAT(
        refusal(input("vlm_glyphs.toml"), {"section.language.layout.ep=2"}),
        HasSubstr(
            "--set section.language.layout.ep: 2, but model.glyph-language has no experts; allowed: 1"));
    EXPECT_THAT(
        refusal(input("vlm_glyphs.toml"), {"section.vision.window=1", "section.vision.micro_batch=1"}),
        HasSubstr("1 micro-batches of 1 samples in flight are fewer than"));
}

TEST(Scenario, ExpertsDivideEvenlyAmongTheRanksOfALane) {
    const std::string deck = input("layouts_moe.toml");
    const std::string layout = "section.language.layout.";
    EXPECT_EQ(scenario_of(deck, {layout + "tp=4", layout + "ep=2", layout + "etp=2"}).graph.world, 5);
    EXPECT_THAT(refusal(deck, {layout + "tp=1", layout + "cp=5", layout + "ep=5"}),
                HasSubstr("layout.ep: 5 ranks cannot split the 12 experts of model.language-12 evenly; the "
                          "nearest that can: "));
    EXPECT_THAT(refusal(deck, {layout + "cp=5", layout + "etp=5"}),
                HasSubstr("layout.etp: 5 ranks cannot split the 48 channels of an expert of"));
    EXPECT_THAT(refusal(deck, {layout + "ep=4"}),
                AllOf(HasSubstr("layout.dp: cp x tp is 2 for 'language', ep x etp is 4: lanes of 4 ranks"),
                      HasSubstr("dp of 'language' to be a multiple of 2; it is 1")));
    EXPECT_EQ(scenario_of(deck, {layout + "dp=2", layout + "ep=4"}).graph.lanes, 2);
    EXPECT_THAT(refusal(deck, {layout + "ep=0"}), HasSubstr("layout.ep"));
}

TEST(Scenario, RefusalsComeWithThoseOfTheDeck) {
    EXPECT_THAT(
        refusal(input("vlm_glyphs.toml"), {"section.vision.mode=forward", "section.language.layout.tp=3"}),
        AllOf(HasSubstr("section.vision.weights: a frozen section needs weights"),
              HasSubstr("section.language.layout.tp: 3 ranks cannot split")));
    // Without its model, the vision section has no kind, and its edge is not refused for that.
    EXPECT_THAT(
        refusal(input("vlm_glyphs.toml"), {"section.vision.model=none"}),
        AllOf(HasSubstr("section.vision.model: there is no [model.none]"), testing::Not(HasSubstr("edge."))));
    EXPECT_THAT(refusal(input("vlm_glyphs.toml"), {"model.glyph-vision.family=qwen3"}),
                HasSubstr("'qwen3' has no vision model; allowed: maestro"));
}

TEST(Scenario, OnlyPartsOfTheModelAreFrozen) {
    const std::string text = input("vlm_glyphs.toml");  // vision: 3 layers; language: 4, tied
    const auto frozen = [&](const std::string& section, const std::string& parts) {
        return refusal(text, {"section." + section + ".freeze=[" + parts + "]"});
    };
    for (const char* parts : {"'patch', 'merger'", "'layers'", "'layers.0-2'", "'layers.1.attention.q_norm'",
                              "'layers.0-2.mlp.gate_up', 'norm', 'projector'"})
        EXPECT_EQ(frozen("vision", parts), "no error") << parts;
    for (const char* part : {"layer.1", "layers.3", "layers.0-3", "layers.2-1", "embedding", "patch.weight",
                             "layers.0.mlp.up", ""})
        EXPECT_THAT(
            frozen("vision", "'norm', '" + std::string(part) + "'"),
            AllOf(
                HasSubstr("section.vision.freeze: '" + std::string(part) +
                          "' is no part of model.glyph-vision; allowed: patch, norm, merger, projector; "
                          "layers.N and layers.A-B, of layers 0 to 2; parts of layers: layers.0.attention, "),
                testing::Not(HasSubstr("'norm' is no"))))
            << part;
    EXPECT_THAT(frozen("language", "'head'"),
                HasSubstr("allowed: embedding, norm (embedding is the head as well);"));
    EXPECT_THAT(frozen("language", "'layers', 'embedding', 'norm'"),
                HasSubstr("section.language.freeze: leaves nothing of model.glyph-language to train"));
}

TEST(Scenario, StagesBehindFrozenOnesWantNoGradient) {
    const auto wanted = [](const std::vector<std::string>& overrides) {
        std::vector<std::string> all{"section.language.layout.pp=4", "section.language.layout.dp=1"};
        all.insert(all.end(), overrides.begin(), overrides.end());
        const Scenario scenario = glyph_scenario(all);
        std::vector<bool> found;
        for (int stage = scenario.graph.sections[1].first_stage; stage <= scenario.graph.last_stage(1);
             ++stage)
            for (const model::InputSpec& input : role_of(scenario, stage).inputs)
                found.push_back(input.gradient);
        return found;
    };
    const std::string freeze = "section.language.freeze=['embedding', 'layers.0-1']";
    const std::vector<std::string> frozen_vision{"section.vision.mode=forward",
                                                 "section.vision.weights=random"};
    EXPECT_THAT(wanted({freeze}), testing::ElementsAre(true, true, true, true)) << "vision trains";
    EXPECT_THAT(wanted({frozen_vision[0], frozen_vision[1]}), testing::ElementsAre(false, true, true, true));
    EXPECT_THAT(wanted({frozen_vision[0], frozen_vision[1], freeze}),
                testing::ElementsAre(false, false, false, true));
}

TEST(Scenario, ATableOfPositionsIsTrainedBeforeTheLayers) {
    const auto wanted = [](const std::string& freeze) {
        const Scenario scenario =
            glyph_scenario({"section.vision.layout.pp=2", "section.vision.freeze=" + freeze,
                            "model.glyph-vision.position_table=4"});
        return role_of(scenario, scenario.graph.sections[0].first_stage + 1).inputs.at(0).gradient;
    };
    EXPECT_TRUE(wanted("['patch', 'layers.0-1']"));
    EXPECT_FALSE(wanted("['patch', 'position', 'layers.0-1']"));
}

/// Layers without a backward pass take a third of the operations of the others.
TEST(Scenario, FrozenLayersMoveTheCutsOfAPipeline) {
    const auto layers = [](const std::vector<std::string>& overrides) {
        std::vector<std::string> all{"model.glyph-language.layers=12", "section.language.layout.pp=2",
                                     "section.language.layout.dp=1", "section.vision.mode=forward",
                                     "section.vision.weights=random"};
        all.insert(all.end(), overrides.begin(), overrides.end());
        const Scenario scenario = glyph_scenario(all);
        return scenario.layers[static_cast<std::size_t>(scenario.graph.sections[1].first_stage)].size();
    };
    EXPECT_EQ(layers({"section.language.freeze=['layers.11.mlp']"}), layers({}));
    EXPECT_GE(layers({"section.language.freeze=['embedding', 'layers.0-5']"}), layers({}) + 2);
}

TEST(Scenario, DegreesThatTheModelDoesNotAllowAreRefusedWithTheNearestThatItDoes) {
    const std::string text = input("vlm_glyphs.toml");  // language: 4 heads, 2 kv_heads
    const auto tp = [&](const std::string& degree) {
        return refusal(text, {"section.language.layout.tp=" + degree});
    };
    EXPECT_EQ(tp("2"), "no error");
    EXPECT_EQ(tp("4"), "no error");  // two ranks hold the same key heads
    EXPECT_THAT(tp("3"), HasSubstr("section.language.layout.tp: 3 ranks cannot split the 4 heads of "
                                   "model.glyph-language evenly; the nearest that can: 2 or 4"));
    EXPECT_THAT(tp("8"), HasSubstr("the nearest that can: 4"));
    EXPECT_THAT(refusal(text, {"section.language.layout.tp=3", "model.glyph-language.heads=6"}),
                HasSubstr("3 ranks cannot split the 2 kv_heads of model.glyph-language evenly; the nearest "
                          "that can: 2 or 6"));
    const auto exchange = [&](const std::string& cp, const std::string& shards) {
        return refusal(text, {"section.language.layout.cp=" + cp, "section.language.layout.tp=" + shards,
                              "section.language.layout.cp_kind=all-to-all"});
    };
    EXPECT_EQ(exchange("4", "1"), "no error");
    EXPECT_THAT(exchange("4", "2"), AllOf(HasSubstr("section.language.layout.cp: "), HasSubstr("2 heads"),
                                          HasSubstr("the nearest that can: 2; or cp_kind = \"ring\"")));
    EXPECT_EQ(refusal(text, {"section.language.layout.cp=5", "section.language.layout.tp=2"}), "no error");
    EXPECT_THAT(refusal(text, {"section.language.layout.cp_kind=both"}), HasSubstr("ring, all-to-all"));
}

TEST(Scenario, DegreesHaveToSplitTheMixersOfAllLayers) {
    const Scenario base = glyph_scenario();
    std::vector<model::ModelSpec> models = base.models;
    auto other = std::get<model::AttentionForm>(models[1].mixers.front());
    other.heads = 6;
    models[1].mixers.push_back(other);
    std::vector<graph::Section> sections = base.graph.sections;
    sections[1].layout.tp = 4;
    std::vector<graph::Refusal> refusals;
    check_layouts(sections, models, refusals);
    ASSERT_EQ(refusals.size(), 1u);
    EXPECT_THAT(refusals[0].what,
                HasSubstr("4 ranks cannot split the 6 heads of model.glyph-language evenly; "
                          "the nearest that can: 2"));
}

TEST(Scenario, OtherSectionsAreCheckedAndDerivedAnew) {
    const Scenario base = glyph_scenario();
    std::vector<graph::Section> sections = base.graph.sections;
    sections[1].layout.dp = 2;
    std::vector<graph::Refusal> refusals;
    const Scenario other = with_sections(base, sections, refusals);
    EXPECT_TRUE(refusals.empty());
    EXPECT_EQ(other.graph.world, 3);
    EXPECT_EQ(other.models, base.models);
    sections[0].layout.dp = 3;  // no multiple of it
    sections[1].layout.tp = 3;  // does not divide the heads
    with_sections(base, sections, refusals);
    ASSERT_EQ(refusals.size(), 1u);
    EXPECT_EQ(refusals[0].key, "section.language.layout.tp");
    sections[1].layout.tp = 0;
    refusals.clear();
    with_sections(base, sections, refusals);
    ASSERT_EQ(refusals.size(), 1u);
    EXPECT_THAT(refusals[0].what, HasSubstr("at least 1"));
}

TEST(Scenario, InOneLayoutEveryRankHoldsAReplicaOfEverySection) {
    const Scenario one = in_one_layout(glyph_scenario({"section.language.layout.tp=2"}));
    EXPECT_EQ(one.graph.world, 7);
    EXPECT_EQ(one.graph.lanes, 7);
    for (const graph::Section& section : one.graph.sections) {
        EXPECT_EQ(section.layout.dp, 7);
        EXPECT_EQ(section.layout.ranks(), 7);
        EXPECT_EQ(section.first_lane, 0);
    }
}

TEST(Scenario, LaysItsSectionsOnTheNodesOfItsCluster) {
    config::Cluster cluster;
    cluster.ranks_per_node = 3;
    const auto first_ranks = [](const Scenario& scenario) {
        return std::pair(scenario.graph.sections[0].first_rank, scenario.graph.sections[1].first_rank);
    };
    const Scenario unknown = glyph_scenario(), laid = on_cluster(unknown, cluster);
    EXPECT_EQ(first_ranks(unknown), std::pair(0, 1));
    EXPECT_EQ(first_ranks(laid), std::pair(3, 0))
        << "the three replicas of language have a node for themselves";
    EXPECT_EQ(laid.cluster->ranks_per_node, 3);
    std::vector<graph::Refusal> refusals;
    EXPECT_EQ(first_ranks(with_sections(laid, laid.graph.sections, refusals)), std::pair(3, 0));
    EXPECT_EQ(first_ranks(on_nodes(laid, 0)), std::pair(0, 1));
}

/// The cost model measures language sections with a picture of 16 x 16 merged patches. In a sanitized build
/// an overflow in the hash of its size ends the test.
TEST(Probes, TakePicturesOfTheLargestPatches) {
    const Scenario scenario = glyph_scenario({"model.glyph-vision.patch=256", "model.glyph-vision.merge=16"});
    Probe probe{.spec = scenario.models[1], .role = role_of(scenario, 1)};
    probe.add({.tokens = 2, .items = {{16 * 256 * 16, 16 * 256 * 16}}});
    Probes probes;
    EXPECT_GT(probes.footprint(probe).saved, 0u);
    const std::int64_t runs = probes.runs();
    EXPECT_GT(probes.footprint(probe).saved, 0u);
    EXPECT_EQ(probes.runs(), runs);
}

class Planning : public data::SampleFileTest {
protected:
    void SetUp() override {
        data::SampleArrays arrays;
        for (int i = 0; i < 40; ++i) arrays.add({257, 256, 'x', 258}, {{64, 32 + i}});
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
        base_ = glyph_scenario();
        base_.markers = file_->markers();
        base_.cluster = config::parse_cluster(input("clusters/h100.toml"), "cluster");
        table_ = std::make_unique<SampleTable>(table_of(base_, *file_));
    }
    /// What a planner asks of a scenario, as one list of numbers.
    std::vector<double> ask(const Scenario& scenario, Probes& probes) const {
        std::vector<double> numbers;
        const CostModel costs(scenario, *table_, probes);
        for (const schedule::TaskCost& task : costs.of(7).stages)
            numbers.insert(numbers.end(), {task.forward_s, task.backward_s, task.transfer_s});
        const MemoryPlan memory = measure_memory(scenario, *table_, probes, 1);
        for (int rank = 0; rank < scenario.graph.world; ++rank)
            numbers.push_back(memory_of(memory, scenario.graph, rank).total());
        for (const StepEnd& end : step_ends(scenario, probes))
            for (const GroupTimes& group : end)
                numbers.insert(numbers.end(), {group.sum_s, group.update_s, group.gather_s});
        return numbers;
    }
    Scenario with_layout(std::size_t section, graph::Layout layout) const {
        std::vector<graph::Section> sections = base_.graph.sections;
        sections[section].layout = layout;
        std::vector<graph::Refusal> refusals;
        Scenario other = with_sections(base_, sections, refusals);
        for (const graph::Refusal& refusal : refusals) ADD_FAILURE() << refusal.key << ": " << refusal.what;
        return other;
    }
    Scenario base_;
    std::unique_ptr<data::SampleFile> file_;
    std::unique_ptr<SampleTable> table_;
};

TEST_F(Planning, AScenarioRunsTheCodeOfThoseSectionsAloneWhoseLayoutIsNew) {
    Probes probes;
    const std::vector<double> first = ask(base_, probes);
    const std::int64_t of_both = probes.runs();
    EXPECT_EQ(ask(base_, probes), first);
    EXPECT_EQ(probes.runs(), of_both);  // nothing is new

    const Scenario narrow = with_layout(1, {.dp = 1, .tp = 2});
    const std::vector<double> kept = ask(narrow, probes);
    const std::int64_t of_language = probes.runs() - of_both;
    Probes fresh;
    EXPECT_EQ(ask(narrow, fresh), kept);  // bit for bit
    const Scenario wide = with_layout(0, {.tp = 3});
    ask(wide, probes);
    const std::int64_t all = probes.runs(), of_vision = all - of_both - of_language;
    EXPECT_GT(std::min(of_vision, of_language), 0);
    // Fresh probes run the code of both sections, of which one has the layout of the deck.
    Probes fresh_wide;
    ask(wide, fresh_wide);
    EXPECT_EQ((fresh.runs() - of_language) + (fresh_wide.runs() - of_vision), of_both);

    // A task does not know of other replicas: only shards and the step's end depend on dp.
    ask(with_layout(1, {.dp = 2}), probes);
    EXPECT_EQ(probes.runs(), all + 2);
}

/// What a micro-batch takes follows from its samples and from how many of them it lacks, within a few per
/// cent of what the model's code takes for it.
TEST_F(Planning, AMicroBatchThatIsNotFullTakesMoreForEachSample) {
    constexpr int kLanguage = 1, kMicroBatch = 8;
    data::SampleArrays arrays;
    for (int i = 0; i < 4; ++i) arrays.add({257, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 258});
    write(arrays);
    const data::SampleFile file(path_);
    const SampleTable table = table_of(base_, file);
    base_.graph.sections[kLanguage].micro_batch = kMicroBatch;
    Probes probes;
    const CostModel costs(base_, table, probes);
    const schedule::TaskCost sample = costs.of(0).stages[kLanguage], lacking = costs.lacking(kLanguage);
    EXPECT_GT(lacking.forward_s, 0.05 * sample.forward_s);
    EXPECT_LT(lacking.forward_s, sample.forward_s);
    for (const int count : {1, 2, 3, 4, 6, 8}) {
        Probe probe{.spec = base_.models[kLanguage],
                    .role = role_of(base_, kLanguage),
                    .shape = mesh_shape_of(base_, kLanguage),
                    .links = mesh_links_of(base_, kLanguage)};
        probe.options.rates = rates_of(base_.cluster->device);
        probe.add(table.shape(0), count);
        const model::Footprint& footprint = probes.footprint(probe);
        const double tolerance = count == 1 ? 0.1 : 0.02;
        EXPECT_NEAR(count * sample.forward_s + (kMicroBatch - count) * lacking.forward_s, footprint.forward_s,
                    tolerance * footprint.forward_s)
            << count;
        EXPECT_NEAR(count * sample.backward_s + (kMicroBatch - count) * lacking.backward_s,
                    footprint.backward_s, tolerance * footprint.backward_s)
            << count;
    }
    base_.graph.sections[kLanguage].micro_batch = 1;
    EXPECT_EQ(CostModel(base_, table, probes).lacking(kLanguage).forward_s, 0);
}

/// Samples of Qwen3-VL-8B, whose lengths are drawn, and what its model's code takes for them.
class Costs : public testing::Test {
protected:
    void make(int samples, std::vector<std::string> settings = {}) {
        settings.insert(settings.end(),
                        {fmt::format("data.lengths.samples={}", samples), "data.global_batch=8"});
        const config::Deck deck =
            config::parse_deck(input("plan_vlm.toml"), "deck", settings, config::Command::simulate);
        scenario_ = make_scenario(deck);
        samples_ = training_samples(deck, scenario_);
        scenario_.markers = samples_->markers();
        scenario_.cluster = config::parse_cluster(input("clusters/h100.toml"), "cluster");
        table_ = std::make_unique<SampleTable>(table_of(scenario_, *samples_));
    }
    /// Seconds of a micro-batch, forward and backward, on the first rank of the section's first stage.
    std::array<double, 2> seconds_of_batch(int section, const std::vector<std::int64_t>& samples) {
        const int stage = scenario_.graph.stage_of(section, 0);
        Probe probe{.spec = scenario_.models[section],
                    .role = role_of(scenario_, stage),
                    .shape = mesh_shape_of(scenario_, stage),
                    .links = mesh_links_of(scenario_, stage)};
        probe.options.rates = rates_of(scenario_.cluster->device);
        for (const std::int64_t id : samples) probe.add(table_->shape(id));
        const model::Footprint& footprint = probes_.footprint(probe);
        return {footprint.forward_s, footprint.backward_s};
    }
    static constexpr int kVision = 0, kLanguage = 1;
    Scenario scenario_;
    std::unique_ptr<data::Samples> samples_;
    std::unique_ptr<SampleTable> table_;
    Probes probes_;
};

/// Rows of pictures cost less than those of texts, which the head predicts. In texts of usual lengths what
/// that saves is known within a few per cent of what the model's code takes.
TEST_F(Costs, OfPicturesWithinTexts) {
    make(24);
    const CostModel costs(scenario_, *table_, probes_);
    double predicted_s = 0, real_s = 0;
    for (std::int64_t id = 0; id < table_->size(); ++id) {
        real_s += seconds_of_batch(kLanguage, {id})[0];
        predicted_s += costs.of(id).stages[kLanguage].forward_s;
    }
    EXPECT_NEAR(predicted_s, real_s, 0.03 * real_s);
}

/// Which pictures of a micro-batch four ranks cut depends on how they go together.
TEST_F(Costs, OfPicturesThatRanksShare) {
    constexpr std::size_t kMicroBatch = 8;
    make(600, {"section.vision.layout.cp=4", fmt::format("section.vision.micro_batch={}", kMicroBatch)});
    const CostModel costs(scenario_, *table_, probes_);
    std::array<double, 2> predicted_s{}, real_s{};
    std::vector<std::int64_t> batch;
    for (std::int64_t id = 30; id < table_->size(); ++id) {
        if (!table_->activates(id, kVision)) continue;
        batch.push_back(id);
        const schedule::TaskCost cost = costs.of(id).stages[kVision];
        predicted_s[0] += cost.forward_s;
        predicted_s[1] += cost.backward_s;
        if (batch.size() < kMicroBatch) continue;
        const std::array<double, 2> seconds = seconds_of_batch(kVision, batch);
        real_s[0] += seconds[0];
        real_s[1] += seconds[1];
        batch.clear();
    }
    for (const std::size_t phase : {0, 1})
        EXPECT_NEAR(predicted_s[phase], real_s[phase], 0.04 * real_s[phase]) << phase;
    // A planner that asks for layers knows it as well.
    const std::vector<std::int64_t> some{31, 40, 57};
    const parallel::MeshLinks links = mesh_links_of(scenario_, 0);
    const SampleWeights weights(
        *table_, kVision, some,
        StageProbe(scenario_, kVision, 0, links, table_->lengths(kVision), probes_).grid());
    std::vector<double> seconds(some.size(), 0.0);
    LayerCosts(scenario_, kVision, links, *table_, probes_, weights)
        .add_seconds({0, scenario_.models[kVision].layers}, 0, 1, seconds);
    for (std::size_t i = 0; i < some.size(); ++i) {
        const schedule::TaskCost cost = costs.of(some[i]).stages[kVision];
        EXPECT_NEAR(seconds[i], cost.forward_s + cost.backward_s, 0.01 * seconds[i]) << i;
    }
    // And of a plan, what each micro-batch takes.
    schedule::Problem problem = problem_of(scenario_);
    for (std::int64_t id = 100; id < 140; ++id) problem.samples.push_back(costs.of(id));
    const schedule::StepPlan plan = schedule::make_plan("fifo", problem, 1);
    const schedule::Problem mixed = with_mixed_batches(problem, plan, scenario_, *table_, probes_);
    int full = 0;
    for (const auto& group : plan.batches[kVision])
        for (const schedule::MicroBatch& of_plan : group) {
            if (of_plan.samples.size() < kMicroBatch) continue;
            ++full;
            double forward_s = 0;
            for (const std::int64_t id : of_plan.samples)
                forward_s += mixed.samples[static_cast<std::size_t>(id - 100)].stages[kVision].forward_s;
            const double expected_s = seconds_of_batch(kVision, of_plan.samples)[0];
            EXPECT_NEAR(forward_s, expected_s, 1e-9 * expected_s);
        }
    EXPECT_GT(full, 0);
    EXPECT_EQ(mixed.samples[3].stages[kLanguage].forward_s, problem.samples[3].stages[kLanguage].forward_s);
    const auto [forward, backward] = mixing_factors(scenario_, kVision, *table_, probes_);
    EXPECT_GT(std::abs(forward - 1) + std::abs(backward - 1), 0.1) << "without them it is not so";
    EXPECT_EQ(mixing_factors(scenario_, kLanguage, *table_, probes_)[0], 1) << "no ranks share texts";
}

TEST_F(Planning, AFileWithoutTargetsIsRefused) {
    data::SampleArrays arrays;
    arrays.add({257, 'x', 258});
    arrays.add({257, 258});
    arrays.loss_weight = {0, 0, 0, 0, 0.5f};
    arrays.weight = {0, 0.5};
    write(arrays);
    base_.global_batch = 1;
    check_samples(base_, data::SampleFile(path_));
    arrays.weight = {0, 0};
    write(arrays);
    for (const bool for_training : {true, false}) {
        const auto refused =
            testing_support::error_of([&] { check_samples(base_, data::SampleFile(path_), for_training); });
        EXPECT_EQ(refused.code, ExitCode::bad_data);
        EXPECT_THAT(refused.what, HasSubstr("no token of its 2 samples has a loss weight"));
    }
}

}  // namespace
}  // namespace maestro::workload
