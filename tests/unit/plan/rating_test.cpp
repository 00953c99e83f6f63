// What a choice needs at least, compared with the memory that is planned for it.
#include "plan/rating.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "graph/grid.hpp"
#include "unit/plan/search_fixture.hpp"
#include "workload/memory.hpp"

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

}  // namespace
}  // namespace maestro::plan
