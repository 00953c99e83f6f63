// The stages of a section: which layers they have, and that they share its work, traffic and memory.
#include "workload/stages.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "unit/workload/glyph_scenario.hpp"
#include "workload/cost_model.hpp"
#include "workload/costs.hpp"
#include "workload/counts.hpp"
#include "workload/layout.hpp"
#include "workload/memory.hpp"
#include "workload/models.hpp"
#include "workload/probes.hpp"

namespace maestro::workload {
namespace {

constexpr int kVision = 0, kLanguage = 1;

/// Calls visit(counts) for every way to cut n elements into `parts` parts.
template <class Visit>
void for_each_cut(int n, int parts, std::vector<int>& counts, const Visit& visit) {
    if (parts == 1) {
        counts.push_back(n);
        visit(counts);
        counts.pop_back();
        return;
    }
    for (int first = 1; first <= n - parts + 1; ++first) {
        counts.push_back(first);
        for_each_cut(n - first, parts - 1, counts, visit);
        counts.pop_back();
    }
}

/// The largest sum of the parts, and the sum of the squares of all sums.
std::pair<double, double> value_of(const std::vector<double>& costs, const std::vector<int>& counts) {
    double largest = 0, squares = 0;
    auto at = costs.begin();
    for (const int n : counts) {
        const double sum = std::accumulate(at, at + n, 0.0);
        at += n;
        largest = std::max(largest, sum);
        squares += sum * sum;
    }
    return {largest, squares};
}

TEST(LinearPartition, IsTheBestOfAllCuts) {
    const Random random(7, "linear partition");
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const int n = 1 + static_cast<int>(seed % 9), parts = 1 + static_cast<int>(seed / 9) % n;
        std::vector<double> costs;
        for (int i = 0; i < n; ++i)  // every other one has many equal costs
            costs.push_back(seed % 2 == 0 ? 1 + std::abs(random.normal(16 * seed + i)) : 1 + i % 2);
        const std::vector<int> found = linear_partition(costs, parts);
        ASSERT_EQ(static_cast<int>(found.size()), parts);
        ASSERT_EQ(std::accumulate(found.begin(), found.end(), 0), n);
        ASSERT_GE(*std::min_element(found.begin(), found.end()), 1);
        const auto [largest, squares] = value_of(costs, found);
        std::vector<int> counts;
        for_each_cut(n, parts, counts, [&](const std::vector<int>& cut) {
            const auto [other_largest, other_squares] = value_of(costs, cut);
            ASSERT_LE(largest, other_largest * (1 + 1e-9)) << "seed " << seed;
            if (other_largest <= largest * (1 + 1e-12)) {
                ASSERT_LE(squares, other_squares * (1 + 1e-9)) << "seed " << seed;
            }
        });
    }
}

/// FLOPs of a sample in the longest stage of a section whose stages have these layers.
double longest_stage(Scenario scenario, int section, const std::vector<int>& layers) {
    scenario.graph.sections[section].layout.layers = layers;
    std::vector<graph::Refusal> refusals;
    scenario = with_sections(scenario, scenario.graph.sections, refusals);
    const int side = 16 * scenario.models[kVision].patch * scenario.models[kVision].merge;
    const model::SampleShape sample{
        .tokens = section == kVision ? 1 : scenario.sequence_length,
        .items = section == kVision ? std::vector<Item>{{side, side}} : std::vector<Item>{},
        .weight = 1};
    double longest = 0;
    for (int s = scenario.graph.sections[section].first_stage; s <= scenario.graph.last_stage(section); ++s) {
        const model::Footprint f =
            model::measure(scenario.models[section], role_of(scenario, s), std::span(&sample, 1));
        longest = std::max(longest, f.forward_flops + f.backward_flops);
    }
    return longest;
}

TEST(Stages, AreBalancedByTheOperationsOfWholeModels) {
    // A wide vocabulary makes the head as costly as some layers, a large merge the end of a vision model.
    for (const char* vocabulary : {"260", "3000"})
        for (const auto& [section, name] : {std::pair{kVision, "vision"}, std::pair{kLanguage, "language"}})
            for (const int pp : {2, 3}) {
                const Scenario scenario =
                    glyph_scenario({fmt::format("model.glyph-language.vocabulary={}", vocabulary),
                                    fmt::format("section.{}.layout.pp={}", name, pp),
                                    "model.glyph-language.layers=6", "model.glyph-vision.layers=5"});
                std::vector<int> chosen;
                for (const Range& layers : layers_of_stages(scenario, section, scenario.sequence_length))
                    chosen.push_back(static_cast<int>(layers.size()));
                const double largest = longest_stage(scenario, section, chosen);
                std::vector<int> counts;
                for_each_cut(scenario.models[section].layers, pp, counts, [&](const std::vector<int>& cut) {
                    ASSERT_LE(largest, longest_stage(scenario, section, cut) * (1 + 1e-9))
                        << name << ", pp " << pp << ", vocabulary " << vocabulary << ": "
                        << fmt::format("[{}]", fmt::join(cut, ", "));
                });
            }
}

/// Returns the layers of both stages of a language section, after a comparison with all cuts.
std::vector<int> balanced(const Scenario& scenario) {
    std::vector<int> chosen;
    for (const Range& layers : layers_of_stages(scenario, kLanguage, scenario.sequence_length))
        chosen.push_back(static_cast<int>(layers.size()));
    std::vector<int> counts;
    for_each_cut(scenario.models[kLanguage].layers, 2, counts, [&](const std::vector<int>& cut) {
        EXPECT_LE(longest_stage(scenario, kLanguage, chosen),
                  longest_stage(scenario, kLanguage, cut) * (1 + 1e-9))
            << fmt::format("[{}] instead of [{}]", fmt::join(chosen, ", "), fmt::join(cut, ", "));
    });
    return chosen;
}

TEST(Stages, AreBalancedWhereSomeLayersHaveExperts) {
    const std::vector<int> chosen =
        balanced(glyph_scenario({"section.language.layout.pp=2", "model.glyph-language.layers=7",
                                 "model.glyph-language.dense_layers=2", "model.glyph-language.experts=4",
                                 "model.glyph-language.experts_per_token=4",
                                 "model.glyph-language.expert_mlp=256", "model.glyph-language.mlp=32"}));
    EXPECT_GT(chosen[0], chosen[1]) << "the first two layers are cheap";
}

TEST(Stages, AreBalancedWhereSomeLayersHaveOtherMixers) {
    Scenario scenario = glyph_scenario({"section.language.layout.pp=2", "model.glyph-language.layers=7"});
    model::ModelSpec& model = scenario.models[kLanguage];
    auto wide = std::get<model::AttentionForm>(model.mixers.front());
    wide.heads *= 16;
    model.mixers.push_back(wide);
    model.mixer_of_layer = {1, 0, 0, 0, 0, 0, 0};
    const std::vector<int> chosen = balanced(scenario);
    EXPECT_LT(chosen[0], chosen[1]) << "the first layer is costly";
}

TEST(Stages, HaveTheLayersThatTheDeckLists) {
    const Scenario scenario =
        glyph_scenario({"section.language.layout.pp=3", "section.language.layout.stages=[1, 2, 1]"});
    EXPECT_THAT(scenario.layers, testing::ElementsAre(Range{0, 3}, Range{0, 1}, Range{1, 3}, Range{3, 4}));
    const model::Role first = role_of(scenario, 1), middle = role_of(scenario, 2),
                      last = role_of(scenario, 3);
    EXPECT_FALSE(first.computes_loss() || middle.computes_loss());
    EXPECT_EQ(last.loss_terms, std::vector{model::LossTerm{}});
    EXPECT_TRUE(first.emits && middle.emits);
    EXPECT_FALSE(last.emits);
    EXPECT_EQ(first.inputs.front().tensor, EdgeTensor::embeddings);
    EXPECT_EQ(middle.inputs.front().tensor, EdgeTensor::stream);
    EXPECT_EQ(last.stage.expansions.size(), 1u);
    EXPECT_EQ(middle.output_width, 128);
}

class StagesOfSamples : public data::SampleFileTest {
protected:
    void SetUp() override {
        data::SampleArrays arrays;
        for (int i = 0; i < 24; ++i) arrays.add({257, 256, 'x', 258}, {{64, 32 + 8 * i}});
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
    }
    Scenario scenario(const std::vector<std::string>& settings) const {
        Scenario made = glyph_scenario(settings);
        made.markers = file_->markers();
        return made;
    }
    std::vector<StepCounts> counts(const Scenario& s) {
        return step_counts(s, table_of(s, *file_), probes_, ids());
    }
    std::vector<std::int64_t> ids() const {
        std::vector<std::int64_t> all(24);
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    std::unique_ptr<data::SampleFile> file_;
    Probes probes_;
};

/// With all experts for each row, it goes to the three other ranks, and their results come back: forward and
/// backward together 5 rows, and choices, weights and their gradients, for each of the three. Over nodes the
/// paths are other ones, but no fewer rows travel in total.
TEST_F(StagesOfSamples, CountTheBytesOfExperts) {
    Scenario s = scenario({"model.glyph-language.experts=4", "model.glyph-language.experts_per_token=4",
                           "model.glyph-language.expert_mlp=24", "section.language.layout.dp=1",
                           "section.language.layout.tp=4", "section.language.layout.ep=4"});
    const SampleTable table = table_of(s, *file_);
    double rows = 0;
    for (const std::int64_t id : ids()) rows += static_cast<double>(table.length(id, 1));
    const model::ModelSpec& model = s.models[1];
    const double bytes = rows * 3 * (5 * model.width + 3 * 4) * sizeof(float) * model.layers;
    EXPECT_NEAR(counts(s)[1].ep_bytes, bytes, 0.02 * bytes);
    EXPECT_EQ(counts(s)[0].ep_bytes, 0);
    s.rank_nodes = {0, 0, 0, 1, 1};
    EXPECT_NEAR(counts(s)[1].ep_bytes, bytes, 0.02 * bytes);
}

/// By short samples the head counts for more layers than by long ones, as those of the deck may be.
TEST_F(StagesOfSamples, AreBalancedByTheLengthsOfTheSamples) {
    Scenario cut = scenario({"section.language.layout.pp=2", "model.glyph-language.layers=12",
                             "data.sequence_length=32768", "model.glyph-language.vocabulary=2000",
                             "section.vision.layout.pp=2"});
    const std::vector<Range> by_deck = cut.layers;
    balance_stages(cut, table_of(cut, *file_));
    EXPECT_EQ(cut.layers[2].size(), by_deck[2].size() + 1);
    EXPECT_EQ(cut.layers[3].begin, cut.layers[2].end);
    EXPECT_EQ(cut.layers[3].end, 12);
    EXPECT_EQ(cut.layers[0].begin, 0);
}

TEST_F(StagesOfSamples, ShareTheWorkOfTheSection) {
    const Scenario whole = scenario({}),
                   cut = scenario({"section.vision.layout.pp=3", "section.language.layout.pp=2"});
    const SampleTable table = table_of(whole, *file_);
    const CostModel one(whole, table, probes_), several(cut, table, probes_);
    for (const std::int64_t id : ids()) {
        const schedule::SampleCost expected = one.of(id), found = several.of(id);
        ASSERT_EQ(found.stages.size(), 5u);
        for (const auto& [section, first, count] : {std::tuple{0u, 0u, 3u}, std::tuple{1u, 3u, 2u}}) {
            double forward = 0, backward = 0;
            for (auto s = first; s < first + count; ++s) {
                EXPECT_TRUE(found.stages[s].active);
                forward += found.stages[s].forward_s;
                backward += found.stages[s].backward_s;
            }
            // Each stage rounds what the next one reads, which is no floating-point operation that the model
            // has in one stage.
            EXPECT_NEAR(forward, expected.stages[section].forward_s, 1e-3 * forward);
            EXPECT_NEAR(backward, expected.stages[section].backward_s, 1e-2 * backward);
        }
    }
}

/// Every row goes to the next stage, and its gradient comes back.
TEST_F(StagesOfSamples, SendTheirRowsToTheNext) {
    const auto pp_bytes = [&](const std::vector<std::string>& settings, int section) {
        return counts(scenario(settings))[static_cast<std::size_t>(section)].pp_bytes;
    };
    const SampleTable table = table_of(scenario({}), *file_);
    double patches = 0, tokens = 0;
    for (const std::int64_t id : ids()) {
        patches += static_cast<double>(table.length(id, kVision));
        tokens += static_cast<double>(table.length(id, kLanguage));
    }
    EXPECT_EQ(pp_bytes({}, kLanguage), 0);
    EXPECT_EQ(pp_bytes({"section.vision.layout.pp=3"}, kVision), 2 * 2 * patches * 96 * 4);
    const std::string untied = "model.glyph-language.tie_embeddings=false";
    EXPECT_EQ(pp_bytes({"section.language.layout.pp=4", untied}, kLanguage), 3 * 2 * tokens * 128 * 4);
    // Each of the two copies of a tied embedding, in each of three replicas, sends its gradient once.
    EXPECT_EQ(pp_bytes({"section.language.layout.pp=4"}, kLanguage),
              3 * 2 * tokens * 128 * 4 + 3 * 2.0 * 260 * 128 * 4);
}

TEST_F(StagesOfSamples, ShareTheMemoryOfTheSection) {
    const Scenario whole = scenario({}),
                   cut = scenario({"section.vision.layout.pp=3", "section.language.layout.pp=4"});
    const SampleTable table = table_of(whole, *file_);
    const MemoryPlan one = measure_memory(whole, table, probes_, backend::Traits()),
                     several = measure_memory(cut, table, probes_, backend::Traits());
    ASSERT_EQ(several.stages.size(), 7u);
    ASSERT_EQ(several.channels.size(), 1u + 2u + 3u);
    const auto parameters = [](const MemoryPlan& plan, std::size_t first, std::size_t count) {
        std::size_t bytes = 0;
        for (auto s = first; s < first + count; ++s) bytes += plan.stages[s].footprint.parameters;
        return bytes;
    };
    EXPECT_EQ(parameters(several, 0, 3), parameters(one, 0, 1));
    // Weights and gradients of the embedding are on both ends. Each array ends with less than a block for
    // each of the three replicas.
    const double due = static_cast<double>(parameters(one, 1, 1)) + 2.0 * 260 * 128 * sizeof(float);
    EXPECT_NEAR(static_cast<double>(parameters(several, 3, 4)), due, 4 * 2 * 3 * 16 * sizeof(float));
    // A stage holds a micro-batch until the stages that follow have returned it. The deck's windows, 6 and 2,
    // are those of the last stages.
    std::vector<int> windows;
    for (const StageMemory& stage : several.stages) windows.push_back(stage.slots());
    EXPECT_THAT(windows, testing::ElementsAre(8, 7, 6, 5, 4, 3, 1));
    // Patches pass between stages, and a fourth as many rows leave the section.
    EXPECT_EQ(several.channels[0].max_sent * 4, several.channels[1].max_sent);
    EXPECT_EQ(several.channels[1].width, 96);
    EXPECT_EQ(several.channels[1].producers, (channel::Side{{0}}));
    EXPECT_EQ(several.channels[1].consumers, (channel::Side{{1}}));
    EXPECT_EQ(several.channels[3].producers, (channel::Side{{3}, {7}, {11}}));
    EXPECT_EQ(several.channels[3].window, 5);
}

/// If the deck leaves the window open, the stages of 1F1B have two more micro-batches where memory allows.
TEST_F(StagesOfSamples, HaveTheWindowsThatMemoryAllows) {
    const auto windows_in = [&](double bytes, const char* chunks) {
        const Scenario cut = scenario({"section.language.layout.pp=2", "section.language.window=0",
                                       fmt::format("section.language.layout.chunks={}", chunks)});
        MemoryPlan plan = measure_memory(cut, table_of(cut, *file_), probes_, backend::Traits());
        choose_windows(plan, cut.graph, bytes);
        std::vector<int> windows;
        for (std::size_t s = 1; s < plan.stages.size(); ++s) windows.push_back(plan.stages[s].slots());
        return windows;
    };
    EXPECT_THAT(windows_in(1e12, "1"), testing::ElementsAre(4, 1));
    EXPECT_THAT(windows_in(1, "1"), testing::ElementsAre(2, 1));
    // Interleaved chunks follow lists that do not use more.
    EXPECT_THAT(windows_in(1e12, "2"), testing::ElementsAre(5, 3, 3, 1));
}

/// Each replica of the section is on one node, and its stages are summed across nodes.
TEST(Stages, UseTheLinksOfTheirRanks) {
    Scenario scenario = glyph_scenario(
        {"section.vision.layout.pp=2", "section.language.layout.pp=2", "section.language.layout.dp=3"});
    scenario.cluster.emplace();
    scenario.cluster->ranks_per_node = 2;
    scenario.cluster->node = {.latency_s = 1, .bandwidth = 10};
    scenario.cluster->network = {.latency_s = 2, .bandwidth = 20};
    const auto& graph = scenario.graph;
    EXPECT_THAT(mesh_links_of(scenario, 2).data_nodes, testing::ElementsAre(1, 2, 3));
    EXPECT_EQ(mesh_links_of(scenario, 2).network.latency_s, 2);
    EXPECT_EQ(mesh_links_of(scenario, 2).tied.latency_s, 1);
    EXPECT_THAT(mesh_links_of(scenario, 0).data_nodes, testing::ElementsAre(0)) << "one replica";
    EXPECT_EQ(mesh_links_of(scenario, 0).data.latency_s, 1);
    EXPECT_EQ(link_from(graph, *scenario.cluster, 0).latency_s, 1);
    EXPECT_EQ(link_from(graph, *scenario.cluster, 1).latency_s, 2) << "to the ranks of language";
    EXPECT_EQ(link_from(graph, *scenario.cluster, 2).latency_s, 1) << "within each replica";
    const schedule::Problem problem = problem_of(scenario);
    ASSERT_EQ(problem.edges.size(), 3u);
    EXPECT_EQ(problem.edges[0].latency_s, 2);
    EXPECT_EQ(problem.edges[1].latency_s, 1);
    EXPECT_EQ(problem.edges[2].latency_s, 1);
}

const std::vector<std::string> kSharedExperts{
    "model.glyph-language.experts=12",    "model.glyph-language.experts_per_token=3",
    "model.glyph-language.expert_mlp=24", "section.language.layout.tp=2",
    "section.language.layout.dp=3",       "section.language.layout.ep=6"};

/// Vision has rank 0, and ranks 1 to 6 share the experts of language.
TEST(Stages, KnowTheNodesOfRanksThatShareExperts) {
    Scenario scenario = glyph_scenario(kSharedExperts);
    EXPECT_TRUE(expert_nodes_of(scenario, 0).empty()) << "no experts";
    EXPECT_TRUE(expert_nodes_of(scenario, 1).empty()) << "not known";
    using testing::ElementsAre;
    scenario.rank_nodes = {0, 1, 0, 1, 1, 0, 1};
    EXPECT_THAT(expert_nodes_of(scenario, 1), ElementsAre(ElementsAre(0, 1, 0, 0, 1, 0)));
    scenario.cluster.emplace();
    scenario.cluster->ranks_per_node = 3;
    EXPECT_THAT(mesh_links_of(scenario, 1).expert_nodes, ElementsAre(0, 0, 1, 1, 1, 2));
    std::vector<std::string> pairs = kSharedExperts;
    pairs.back() = "section.language.layout.ep=2";
    Scenario shared = glyph_scenario(pairs);
    shared.rank_nodes = {0, 0, 0, 0, 3, 3, 3};
    EXPECT_THAT(expert_nodes_of(shared, 1), ElementsAre(ElementsAre(0, 1), ElementsAre(0, 0)));
}

/// Rows that cross the border of a node pass through one rank there, which has them beside those of its
/// experts.
TEST_F(StagesOfSamples, HaveMemoryForRowsThatAreForwardedWithinANode) {
    const auto scratch = [&](std::vector<int> nodes) {
        Scenario on_nodes = scenario(kSharedExperts);
        on_nodes.rank_nodes = std::move(nodes);
        return measure_memory(on_nodes, table_of(on_nodes, *file_), probes_, backend::Traits())
            .stages[1]
            .footprint.scratch;
    };
    const std::size_t one = scratch({0, 0, 0, 0, 0, 0, 0});
    EXPECT_EQ(scratch({}), one);
    EXPECT_EQ(scratch({0, 1, 2, 3, 4, 5, 6}), one) << "no rank has another one on its node";
    EXPECT_GT(scratch({0, 0, 1, 0, 1, 0, 1}), one);
}

/// Three replicas of two ranks share experts. The operations of a rank for unlike samples, counted by the
/// model's own code, are those that it does alone for its sample, and a third of what all do in common. The
/// cost model interpolates between few lengths, and two ranks round the rows of a short sample up.
TEST_F(StagesOfSamples, WorkInCommonWhereReplicasShareExperts) {
    const Scenario shared = scenario(kSharedExperts);
    const SampleTable table = table_of(shared, *file_);
    const CostModel costs(shared, table, probes_);
    const std::vector<std::int64_t> samples{0, 9, 23};  // of 19, 37 and 65 rows, say
    std::vector<std::int64_t> lane_rows;
    for (const std::int64_t sample : samples)
        for (const std::int64_t rows :
             rows_of_ranks(pack_sequences(table, kLanguage, std::span(&sample, 1)), {.cp = 1, .tp = 2}))
            lane_rows.push_back(rows);
    const auto operations = [&](std::size_t replica, bool like) {
        Probe probe{.spec = shared.models[kLanguage],
                    .role = role_of(shared, 1),
                    .shape = mesh_shape_of(shared, 1),
                    .rank = 2 * static_cast<int>(replica)};
        probe.add(table.shape(samples[replica]));
        if (!like) probe.options.lane_rows = lane_rows;
        const model::Footprint& f = probes_.footprint(probe);
        return f.forward_flops + f.backward_flops;
    };
    double common = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const double share = costs.of(samples[i]).stages[1].common;
        EXPECT_GT(share, 0.1);
        EXPECT_LT(share, 0.9);
        common += share * operations(i, true) / 3;
    }
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const double alone = (1 - costs.of(samples[i]).stages[1].common) * operations(i, true);
        EXPECT_NEAR(operations(i, false), alone + common, 0.03 * alone) << "replica " << i;
    }
    EXPECT_EQ(CostModel(scenario({}), table, probes_).of(0).stages[1].common, 0);
}

/// What a rank exchanges for its node depends on how many ranks share that, and the slowest rank counts.
TEST(Stages, EndAStepWithTheirSlowestRank) {
    for (const char* replicas : {"3", "5", "6", "7"}) {
        SCOPED_TRACE(replicas);
        Scenario scenario = glyph_scenario(
            {std::string("section.language.layout.dp=") + replicas, "section.vision.layout.dp=1"});
        scenario.cluster = config::parse_cluster(testing_support::input("clusters/h100.toml"), "cluster");
        scenario.cluster->ranks_per_node = 4;
        Probes probes;
        const StepEnd found = step_ends(scenario, probes)[1];
        GroupTimes slowest;
        ASSERT_EQ(found.size(), 1u);
        Probe probe{.spec = scenario.models[1],
                    .role = role_of(scenario, 1),
                    .shape = mesh_shape_of(scenario, 1),
                    .links = mesh_links_of(scenario, 1)};
        probe.options.rates = rates_of(scenario.cluster->device);
        for (probe.rank = 0; probe.rank < probe.shape.dp; ++probe.rank) {
            const GroupTimes& of_rank = probes.step_end(probe).front();
            slowest.sum_s = std::max(slowest.sum_s, of_rank.sum_s);
            slowest.update_s = std::max(slowest.update_s, of_rank.update_s);
            slowest.gather_s = std::max(slowest.gather_s, of_rank.gather_s);
        }
        EXPECT_DOUBLE_EQ(found.front().sum_s, slowest.sum_s);
        EXPECT_DOUBLE_EQ(found.front().update_s, slowest.update_s);
        EXPECT_DOUBLE_EQ(found.front().gather_s, slowest.gather_s);
    }
}

/// On how many nodes the groups of a stage are: those with most.
TEST(Stages, KnowTheNodesOfTheirGroups) {
    const auto nodes = [](const std::vector<std::string>& layout, int ranks_per_node, bool measured) {
        std::vector<std::string> values{"section.language.layout.dp=2",
                                        "section.language.layout.first_rank=1"};
        for (const std::string& value : layout) values.push_back("section.language.layout." + value);
        Scenario scenario = glyph_scenario(values);
        scenario.cluster.emplace();
        scenario.cluster->ranks_per_node = ranks_per_node;
        if (measured)
            scenario.cluster->collectives = collective::CollectiveTimes({{.bytes = 1, .seconds = 1}});
        const parallel::MeshLinks links = mesh_links_of(scenario, 1);
        EXPECT_EQ(links.collectives, scenario.cluster->collectives);
        return std::array{links.tp_nodes, links.cp_nodes, links.tied_nodes};
    };
    using testing::ElementsAre;
    EXPECT_THAT(nodes({"tp=4"}, 4, true), ElementsAre(2, 1, 1));
    EXPECT_THAT(nodes({"tp=4"}, 2, true), ElementsAre(3, 1, 1)) << "1 | 2 3 | 4 and 5 | 6 7 | 8";
    EXPECT_THAT(nodes({"tp=2", "cp=3"}, 2, true), ElementsAre(2, 3, 1));
    EXPECT_THAT(nodes({"pp=2", "tp=2"}, 2, true), ElementsAre(2, 1, 2));
    EXPECT_THAT(nodes({"tp=4"}, 16, true), ElementsAre(1, 1, 1));
}

/// The first replica is on one node, and the border cuts a group of the second one.
TEST(Stages, UseTheSlowestLinkOfTheirReplicas) {
    const auto links = [](const std::vector<std::string>& layout, int first_rank) {
        std::vector<std::string> values{"section.language.layout.dp=2",
                                        fmt::format("section.language.layout.first_rank={}", first_rank)};
        for (const std::string& value : layout) values.push_back("section.language.layout." + value);
        Scenario scenario = glyph_scenario(values);
        scenario.cluster.emplace();
        scenario.cluster->ranks_per_node = 4;
        scenario.cluster->node.latency_s = 1;
        scenario.cluster->network.latency_s = 2;
        return mesh_links_of(scenario, 1);
    };
    EXPECT_EQ(links({"tp=2"}, 1).tp.latency_s, 2);
    EXPECT_EQ(links({"tp=2"}, 0).tp.latency_s, 1);
    EXPECT_EQ(links({"cp=2"}, 1).cp.latency_s, 2);
    EXPECT_EQ(links({"cp=2"}, 0).cp.latency_s, 1);
    EXPECT_EQ(links({"pp=2"}, 1).tied.latency_s, 2);
    EXPECT_EQ(links({"pp=2"}, 0).tied.latency_s, 1);
    EXPECT_THAT(links({"tp=2", "cp=2"}, 0).data_nodes, testing::ElementsAre(0, 0, 1, 1));
    EXPECT_THAT(links({"tp=2"}, 1).data_nodes, testing::ElementsAre(0, 1)) << "of the second tp rank";
    EXPECT_EQ(links({"tp=2", "cp=2"}, 0).cp.latency_s, 1);
    EXPECT_EQ(links({"cp=2"}, 1).tp.latency_s, 1) << "a group of one rank";
}

}  // namespace
}  // namespace maestro::workload
