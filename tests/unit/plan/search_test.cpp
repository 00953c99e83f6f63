// The search for a plan, compared with all plans.
#include "plan/search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "plan/robustness.hpp"
#include "support/collective_rows.hpp"
#include "unit/plan/search_fixture.hpp"
#include "unit/workload/glyph_scenario.hpp"

namespace maestro::plan {
namespace {

class Search : public SearchTest {};

TEST_F(Search, FindsTheFastestOfAllPlans) {
    make({.fixed = kFixed});
    EXPECT_GT(compare(4).size(), 200u);
}

/// Then the longest samples decide, not the mean work.
TEST_F(Search, FindsTheFastestPlanOfFewSamples) {
    make({.samples = 3, .fixed = kFixed});
    EXPECT_GT(compare(3).size(), 30u);
}

/// The fewer ranks of one section update its weights longer than those of the other, whose gathers run
/// beside.
TEST_F(Search, FindsTheFastestPlanOfUnlikeUpdates) {
    std::set<std::string> fixed = kFixed;
    fixed.insert({"section.language.layout.pp", "section.vision.layout.pp", "section.vision.layout.tp",
                  "section.language.micro_batch"});
    make({.samples = 48, .fixed = fixed, .ranks_per_node = 8});
    EXPECT_GT(compare(3).size(), 30u);
}

/// Replicas share experts, or each has all of them.
TEST_F(Search, FindsTheFastestPlanWithExperts) {
    std::set<std::string> fixed = kFixed;
    fixed.insert({"section.language.layout.pp", "section.vision.layout.pp", "section.vision.layout.tp",
                  "section.vision.micro_batch"});
    make({.fixed = fixed,
          .values = {"model.glyph-language.experts=4", "model.glyph-language.experts_per_token=2",
                     "model.glyph-language.expert_mlp=32"}});
    EXPECT_GT(compare(4).size(), 100u);
}

/// Two or four replicas that share experts are one group, which any number of replicas upstream may feed.
TEST_F(Search, FindsTheFastestPlanOfOneGroupOfReplicas) {
    std::set<std::string> fixed = kFixed;
    fixed.insert({"section.language.layout.tp", "section.language.layout.pp", "section.vision.layout.tp",
                  "section.vision.layout.pp", "section.vision.micro_batch", "section.language.micro_batch"});
    make({.fixed = fixed,
          .values = {"model.glyph-language.experts=4", "model.glyph-language.experts_per_token=2",
                     "model.glyph-language.expert_mlp=32"}});
    EXPECT_GT(compare(5).size(), 20u);
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
        make({.fixed = fixed, .kind = "gpu", .values = settings});
        const std::vector<Plan> all = compare(3);
        std::vector<double> memory;
        for (const Plan& plan : all)
            memory.push_back(*std::max_element(plan.memory.begin(), plan.memory.end()));
        std::sort(memory.begin(), memory.end());
        make({.fixed = fixed, .memory = memory[memory.size() / 3], .kind = "gpu", .values = settings});
        const std::size_t fitting = compare(3).size();
        EXPECT_GT(fitting, all.size() / 10);
        EXPECT_LT(fitting, 9 * all.size() / 10);
    }
}

/// Of two plans, the one whose ranks sum gradients across nodes loses where what was measured there is
/// slower.
TEST_F(Search, PlansLoseByMeasuredCollectivesThatAreSlower) {
    make({.samples = 12});
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
    find_worst_losses(*subject_, plans, "wavefront", [](const Plan&) { return 4; });
    std::vector<double> seconds;
    for (Plan plan : plans) {
        config::Cluster& cluster = *plan.scenario.cluster;
        cluster.network.bandwidth /= 2;
        cluster.collectives = cluster.collectives.slower(true, 2);
        workload::Estimates estimates(*table_, *probes_);  // of this cluster
        seconds.push_back(simulated(subject_->with(estimates), std::move(plan), "wavefront").step_s);
    }
    ASSERT_LT(seconds[0], seconds[1]);
    EXPECT_EQ(plans[1].worst_rates, "half the bandwidth between nodes");
    EXPECT_DOUBLE_EQ(*plans[1].worst, seconds[1] / seconds[0] - 1);
    // Where only the ranks that a plan uses are paid, it also loses by their number.
    find_worst_losses(*subject_, plans, "wavefront", [](const Plan& plan) { return plan.ranks; });
    EXPECT_GE(*plans[1].worst, 2 * seconds[1] / seconds[0] - 1);
}

/// All plans are simulated on the same steps, each of them on every step.
TEST_F(Search, PlansAreSimulatedOnTheSameSteps) {
    make({.samples = 6, .fixed = kFixed, .steps = 3, .policy = "lpt"});
    const std::vector<Plan> plans = all_plans(3);
    EXPECT_GT(plans.size(), 50u);
    std::vector<Subject> of_steps;
    for (const std::vector<std::int64_t>& ids : subject_->steps) {
        of_steps.push_back(*subject_);
        of_steps.back().steps = {ids};
    }
    for (const Plan& plan : plans) {
        double step_s = 0, tokens = 0;
        for (const Subject& subject : of_steps) {
            const Plan of_step = simulated(subject, plan, policy_);
            step_s += of_step.step_s;
            tokens += of_step.tokens;
        }
        EXPECT_DOUBLE_EQ(plan.step_s, step_s) << describe(plan);
        EXPECT_EQ(plan.tokens, tokens);
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
