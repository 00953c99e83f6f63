// The search for a plan, compared with all plans.
#include "plan/search.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <set>

#include "config/cluster.hpp"
#include "plan/robustness.hpp"
#include "support/collective_rows.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "unit/workload/glyph_scenario.hpp"
#include "workload/models.hpp"
#include "workload/stages.hpp"

namespace maestro::plan {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

/// A step of samples with unlike pictures, a third of them without, on nodes of two ranks.
class Search : public data::SampleFileTest {
protected:
    /// `memory`: bytes of a rank; `fixed`: keys that stay as the deck has them.
    void make(int samples, const std::set<std::string>& fixed, double memory = 16e9, std::string kind = "cpu",
              const std::vector<std::string>& settings = {}) {
        data::SampleArrays arrays;
        for (int i = 0; i < samples; ++i)
            if (i % 3 == 2)
                arrays.add({257, 'x', 'y', 258}, {});
            else
                arrays.add({257, 256, 'x', 258}, {{64, i == 1 ? 448 : 32 + 8 * (i % 9)}});
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
        workload::Scenario deck = workload::glyph_scenario(settings);
        deck.markers = file_->markers();
        deck.global_batch = samples;
        for (graph::Section& section : deck.graph.sections) section.window = 0;
        const config::Cluster cluster{.name = "test",
                                      .ranks_per_node = 2,
                                      .device = {.memory = memory,
                                                 .memory_bandwidth = 1e10,
                                                 .element_flops = 1e9,
                                                 .operation_s = 2e-6,
                                                 .kind = std::move(kind),
                                                 .context_memory = 0,
                                                 .library_memory = 0,
                                                 .nccl_connection_memory = 0,
                                                 .gemm_rates = {{16, 2e10, 4e10}, {256, 5e10, 1e11}}},
                                      .node = {2e-6, 5e9},
                                      .network = {2e-5, 1e9}};
        scenario_ = std::make_unique<workload::Scenario>(workload::on_cluster(std::move(deck), cluster));
        table_ = std::make_unique<workload::SampleTable>(workload::table_of(*scenario_, *file_));
        std::vector<std::int64_t> ids(static_cast<std::size_t>(samples));
        std::iota(ids.begin(), ids.end(), 0);
        estimates_ = std::make_unique<workload::Estimates>(*table_, probes_);
        subject_ = std::make_unique<Subject>(
            Subject{.scenario = *scenario_,
                    .table = *table_,
                    .probes = probes_,
                    .device = workload::rank_device_of(cluster, config::Run()),
                    .options = {},
                    .estimates = *estimates_,
                    .steps = {ids},
                    .moves = 20,
                    .is_fixed = [fixed](const std::string& key) { return fixed.contains(key); }});
    }

    /// Returns the seconds of the steps with these choices, or infinity where they do not fit.
    double seconds_of(const std::vector<Choice>& choices, const std::vector<int>& host_of, int ranks) {
        std::vector<graph::Refusal> refusals;
        Plan plan{.choices = choices, .host_of = host_of};
        plan.scenario = with_choices(*scenario_, choices, host_of, refusals);
        if (!refusals.empty() || plan.scenario.graph.world > ranks) return kNone;
        workload::balance_stages(plan.scenario, *table_);
        const workload::StepEstimate step = workload::estimate(
            plan.scenario, *table_, probes_, subject_->device, subject_->options, subject_->steps.front());
        return step.shortage.empty() ? simulated(*subject_, std::move(plan), "wavefront").step_s : kNone;
    }

    /// Compares the search with all plans of the choices on so many ranks. Returns all that fit.
    std::vector<Plan> compare(int ranks) {
        const auto visions = choices_of(*scenario_, 0, ranks, subject_->is_fixed),
                   languages = choices_of(*scenario_, 1, ranks, subject_->is_fixed);
        double fastest_s = kNone;
        int all = 0;
        for (const Choice& vision : visions)
            for (const Choice& language : languages)
                for (const std::vector<int>& host_of : {std::vector{0, 1}, std::vector{0, 0}}) {
                    const double seconds = seconds_of({vision, language}, host_of, ranks);
                    if (seconds < kNone) ++all;
                    fastest_s = std::min(fastest_s, seconds);
                }
        table_->keep_extremes(static_cast<int>(scenario_->global_batch));
        const Ratings ratings = rate(*subject_, ranks);
        const Found found = search(*subject_, ratings, {.ranks = ranks});
        EXPECT_FALSE(found.plans.empty());
        if (!found.plans.empty()) {
            EXPECT_DOUBLE_EQ(found.plans.front().step_s, fastest_s);
        }
        EXPECT_TRUE(found.proved);
        EXPECT_LE(found.simulated, std::min(100, std::max(30, all / 3)));
        // Where all of them are asked for, there are as many, and none is faster than its bound.
        const Found every = search(*subject_, ratings, {.ranks = ranks, .all = true, .simulated = 1 << 20});
        EXPECT_EQ(every.simulated, all);
        for (const Plan& plan : every.plans)
            EXPECT_LE(plan.bound_s, plan.step_s)
                << describe(plan.choices[0]) << ", " << describe(plan.choices[1]);
        return every.plans;
    }

    std::unique_ptr<data::SampleFile> file_;
    std::unique_ptr<workload::Scenario> scenario_;
    std::unique_ptr<workload::SampleTable> table_;
    std::unique_ptr<Subject> subject_;
    workload::Probes probes_;
    std::unique_ptr<workload::Estimates> estimates_;
};

const std::set<std::string> kFixed{"section.vision.recompute",       "section.vision.layout.cp",
                                   "section.language.layout.cp",     "section.vision.layout.chunks",
                                   "section.language.layout.chunks", "section.language.recompute"};

TEST_F(Search, FindsTheFastestOfAllPlans) {
    make(12, kFixed);
    EXPECT_GT(compare(4).size(), 200u);
}

/// Then the longest samples decide, not the mean work.
TEST_F(Search, FindsTheFastestPlanOfFewSamples) {
    make(3, kFixed);
    EXPECT_GT(compare(3).size(), 30u);
}

/// Collectives were measured, and take longer where ranks share the connection of their node.
TEST_F(Search, FindsTheFastestPlanOnMeasuredCollectives) {
    std::set<std::string> fixed = kFixed;
    fixed.insert({"section.vision.layout.pp", "section.language.layout.pp", "section.vision.micro_batch"});
    make(12, fixed);
    const collective::LinkCost node{4e-6, 2e9}, alone{2e-5, 5e8}, shared{4e-5, 2e8};
    std::vector<collective::CollectiveRow> rows;
    for (const auto& more :
         {testing_support::rows_of_link(2, 1, node), testing_support::rows_of_link(2, 2, alone),
          testing_support::rows_of_link(4, 4, alone), testing_support::rows_of_link(4, 2, shared)})
        rows.insert(rows.end(), more.begin(), more.end());
    scenario_->cluster->collectives = collective::CollectiveTimes(rows);
    EXPECT_GT(compare(4).size(), 50u);
}

/// Of two plans, the one whose ranks sum gradients across nodes loses where what was measured there is
/// slower.
TEST_F(Search, PlansLoseByMeasuredCollectivesThatAreSlower) {
    make(12, {});
    const collective::LinkCost node{4e-6, 2e9}, network{1e-4, 1e7};
    std::vector<collective::CollectiveRow> rows = testing_support::rows_of_link(2, 1, node);
    for (const collective::CollectiveRow& row : testing_support::rows_of_link(4, 2, network))
        rows.push_back(row);
    scenario_->cluster->collectives = collective::CollectiveTimes(rows);
    Choice one = choices_of(*scenario_).first[1];
    one.layout = {};
    Choice two = one, four = one;
    two.layout.dp = 2;
    four.layout.dp = 4;
    std::vector<Plan> plans;
    for (const Choice& choice : {two, four}) {
        const auto plan = plan_of(*subject_, {choice, choice}, {0, 0}, "wavefront");
        ASSERT_TRUE(plan);
        plans.push_back(*plan);
    }
    find_worst_losses(*subject_, plans, "wavefront");
    std::vector<double> seconds;
    for (Plan plan : plans) {
        config::Cluster& cluster = *plan.scenario.cluster;
        cluster.network.bandwidth /= 2;
        cluster.collectives = cluster.collectives.slower(true, 2);
        seconds.push_back(simulated(*subject_, std::move(plan), "wavefront").step_s);
    }
    ASSERT_LT(seconds[0], seconds[1]);
    EXPECT_EQ(plans[1].worst_rates, "half the bandwidth between nodes");
    EXPECT_DOUBLE_EQ(*plans[1].worst, seconds[1] / seconds[0] - 1);
}

/// Replicas share experts, or each has all of them.
TEST_F(Search, FindsTheFastestPlanWithExperts) {
    std::set<std::string> fixed = kFixed;
    fixed.insert({"section.language.layout.pp", "section.vision.layout.pp", "section.vision.layout.tp",
                  "section.vision.micro_batch"});
    make(12, fixed, 16e9, "cpu",
         {"model.glyph-language.experts=4", "model.glyph-language.experts_per_token=2",
          "model.glyph-language.expert_mlp=32"});
    EXPECT_GT(compare(4).size(), 100u);
}

/// Many plans do not fit into memory, and none of those that do is left out: with a small vocabulary, with a
/// large one whose embedding is tied to the head, in bf16 with masters of the weights, and with experts.
TEST_F(Search, FindsTheFastestPlanThatFitsIntoMemory) {
    const std::vector<std::vector<std::string>> models = {
        {},
        {"model.glyph-language.vocabulary=30000"},
        {"model.glyph-language.vocabulary=30000", "run.precision=bf16"},
        {"model.glyph-language.experts=4", "model.glyph-language.experts_per_token=2",
         "model.glyph-language.expert_mlp=256"}};
    std::set<std::string> fixed = kFixed;
    fixed.insert("section.vision.micro_batch");
    for (const std::vector<std::string>& settings : models) {
        SCOPED_TRACE(settings.empty() ? "" : settings.front());
        make(12, fixed, 16e9, "gpu", settings);
        const std::vector<Plan> all = compare(3);
        std::vector<double> memory;
        for (const Plan& plan : all)
            memory.push_back(*std::max_element(plan.memory.begin(), plan.memory.end()));
        std::sort(memory.begin(), memory.end());
        make(12, fixed, memory[memory.size() / 3], "gpu", settings);
        const std::size_t fitting = compare(3).size();
        EXPECT_GT(fitting, all.size() / 10);
        EXPECT_LT(fitting, 9 * all.size() / 10);
    }
}

/// The extremes alone give the bounds of every micro-batch that all samples give: those of long texts, of
/// large pictures, and of both at once.
TEST_F(Search, ExtremesAreThoseOfAllSamples) {
    constexpr int kSamples = 40;
    data::SampleArrays arrays;
    for (int i = 0; i < kSamples; ++i) {
        std::vector<std::int32_t> tokens{257, 256};
        tokens.resize(static_cast<std::size_t>(3 + i + 3 * (i % 5)), 'x');
        arrays.add(tokens, {{64, 8 * (kSamples - i + 2 * (i % 3))}});
    }
    write(arrays);
    const data::SampleFile file(path_);
    const workload::Scenario scenario = workload::glyph_scenario();
    const workload::SampleTable all = workload::table_of(scenario, file);
    workload::SampleTable some = all;
    some.keep_extremes(3);
    int visited = 0;
    some.for_each([&](std::int64_t) { ++visited; });
    EXPECT_LT(visited, kSamples);
    for (const int samples : {1, 2, 3}) {
        EXPECT_EQ(some.worst_micro_batch(samples), all.worst_micro_batch(samples));
        for (const int section : {0, 1})
            EXPECT_EQ(some.longest_micro_batch(samples, section), all.longest_micro_batch(samples, section));
        for (const std::int64_t weight : {1, 2, 3, 5, 7, 8, 10, 20, 40}) {
            const auto value = [&](std::int64_t i) { return all.length(i, 0) + weight * all.tokens(i); };
            EXPECT_EQ(some.sum_of_largest(samples, value), all.sum_of_largest(samples, value)) << weight;
        }
    }
    EXPECT_EQ(some.lengths(1).sum, all.lengths(1).sum);
}

}  // namespace
}  // namespace maestro::plan
