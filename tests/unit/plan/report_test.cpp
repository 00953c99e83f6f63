// What scripts see of a plan.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "plan/plan.hpp"
#include "unit/plan/search_fixture.hpp"

namespace maestro::plan {
namespace {

class PlanReport : public SearchTest {};

/// With `--ranks N` all N are paid, in a range only those that a plan uses.
TEST_F(PlanReport, IdleRanksArePaid) {
    make({});
    const auto [choices, host_of] = choices_of(*scenario_);
    Plan plan = *plan_with(choices, host_of, 4);
    plan.ranks = plan.scenario.graph.world;
    ASSERT_EQ(plan.ranks, 4);
    const double tokens = plan.tokens, step_s = plan.step_s;
    Report report{.cluster = "test", .ranks = 6, .price = 18, .ranks_per_node = 2};
    report.found.plans.push_back(std::move(plan));
    for (const bool all : {true, false}) {
        report.pays_all = all;
        const nlohmann::json json = nlohmann::json::parse(to_json(report))["plans"][0];
        EXPECT_DOUBLE_EQ(json["tokens_per_rank_hour"].get<double>(), 3600 * tokens / step_s / (all ? 6 : 4));
        EXPECT_DOUBLE_EQ(json["price_per_million_tokens"].get<double>(),
                         (all ? 3 : 2) * 18 * step_s / 3600 / tokens * 1e6);
    }
}

}  // namespace
}  // namespace maestro::plan
