// What a choice needs at least, compared with the memory that is planned for it.
#include "plan/rating.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "graph/grid.hpp"
#include "unit/plan/search_fixture.hpp"
#include "workload/memory.hpp"
#include "workload/step_end.hpp"

namespace maestro::plan {
namespace {

class RatingTest : public SearchTest {};

/// Of a section without pipelines that keeps one micro-batch: all but scratch and rows in transit. In bf16,
/// ranks share masters of the weights, as they share moments.
TEST_F(RatingTest, MemoryIsThatOfThePlan) {
    for (const char* precision : {"run.precision=bf16", "run.precision=fp32"}) {
        SCOPED_TRACE(precision);
        make({.fixed = {"section.language.layout.pp", "section.language.layout.cp"},
              .kind = "gpu",
              .values = {"model.glyph-language.vocabulary=30000", precision}});
        int shared = 0;
        const Ratings ratings = rate_all(4);
        for (const Rated& rated : ratings.sections[1]) {
            auto [choices, host_of] = choices_of(*scenario_);
            choices[0].layout.dp = 1;
            choices[1] = rated.choice;
            std::vector<graph::Refusal> refusals;
            const workload::Scenario scenario = with_choices(*scenario_, choices, host_of, refusals);
            if (!refusals.empty()) continue;
            const graph::SectionGraph& graph = scenario.graph;
            const workload::RankMemory planned = workload::memory_of(
                subject_->memory(scenario), graph, graph::first_rank_of(graph, graph.stage_of(1, 0)));
            const double kept = planned.needed() - planned.scratch - planned.channels;
            EXPECT_LE(rated.bytes, planned.needed()) << plan::describe(rated.choice);
            EXPECT_NEAR(rated.bytes, kept, 0.01 * kept) << plan::describe(rated.choice);
            shared += rated.choice.layout.dp > 1;
        }
        EXPECT_GT(shared, 10);
    }
}

/// Among many nodes with several ranks each, sums of gradients are many operations, whatever the links are.
TEST_F(RatingTest, LikelyTimesKnowTheSumsOfManyNodes) {
    constexpr int kRanks = 256;
    make({.samples = kRanks,
          .fixed = {"section.language.layout.pp", "section.language.layout.cp", "section.language.layout.tp",
                    "section.language.micro_batch"},
          .node = {0, 1e15},
          .network = {0, 1e15}});
    // Only the fixed costs of operations are left.
    config::Device& device = scenario_->cluster->device;
    device.memory_bandwidth = device.element_flops = 1e15;
    device.gemm_rates = {{16, 1e15, 1e15}};
    double likely_s = 0;
    Choice widest;
    const Ratings ratings = rate(*subject_, kRanks);
    for (const Rated& rated : ratings.sections[1])
        if (rated.choice.layout.dp == kRanks) {
            widest = rated.choice;
            likely_s = rated.likely_s - rated.busiest_s;
        }
    ASSERT_EQ(widest.layout.dp, kRanks);
    const std::optional<Plan> plan =
        plan_with({{.layout = {}, .micro_batch = 1}, widest}, {0, 1}, kRanks + 1);
    double sums_s = 0;
    const workload::Scenario& scenario = plan.value().scenario;
    for (const workload::GroupTimes& group :
         workload::step_end_of(scenario, scenario.graph.stage_of(1, 0), *probes_))
        sums_s += group.sum_s;
    EXPECT_GT(likely_s, 0.5 * sums_s);
    EXPECT_LT(likely_s, 1.5 * sums_s);
}

}  // namespace
}  // namespace maestro::plan
