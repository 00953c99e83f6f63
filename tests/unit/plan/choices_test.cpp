// What a plan's choices mean: the same as in a deck that says them.
#include "plan/choices.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "plan/search.hpp"
#include "unit/plan/search_fixture.hpp"
#include "workload/stages.hpp"

namespace maestro::plan {
namespace {

class Choices : public SearchTest {};

TEST_F(Choices, AreThoseOfADeckThatSaysThem) {
    const std::vector<std::vector<std::string>> decks = {
        {"section.vision.layout.dp=2", "section.vision.micro_batch=2", "section.language.layout.dp=1",
         "section.language.layout.tp=2", "section.language.micro_batch=2"},
        {"section.language.recompute=layer"},
        {"section.vision.recompute=cheap", "section.vision.layout.pp=3", "section.language.layout.dp=1"},
        {"section.language.layout.dp=1", "section.language.layout.pp=2", "section.language.layout.chunks=2"},
        {"section.language.layout.dp=1", "section.language.layout.cp=2"},
        {"section.vision.layout.dp=3", "section.language.colocate_with=vision"}};
    for (const std::vector<std::string>& values : decks) {
        SCOPED_TRACE(fmt::format("{}", fmt::join(values, ", ")));
        Setting setting{.values = values};
        setting.values.push_back("section.vision.window=0");
        make(setting);
        const auto [choices, host_of] = choices_of(*scenario_);
        Plan of_deck{.choices = choices, .host_of = host_of, .scenario = *scenario_};
        workload::balance_stages(of_deck.scenario, *table_);
        of_deck = simulated(*subject_, std::move(of_deck), policy_);
        make({});
        const std::optional<Plan> chosen = plan_with(choices, host_of, 8);
        ASSERT_TRUE(chosen);
        EXPECT_EQ(chosen->step_s, of_deck.step_s);
        EXPECT_EQ(chosen->windows, of_deck.windows);
        EXPECT_EQ(chosen->memory, of_deck.memory);
    }
}

/// Two ranks exchange rows at the rate of the node, unless the border between nodes is between them. What is
/// known of one place is not taken for another.
TEST_F(Choices, TakeWhatTheLinksOfTheirPlacesTake) {
    make({});
    const auto forward_s = [&](int first_rank) {
        const std::vector<Choice> choices{{.layout = {.first_rank = 2 - 2 * first_rank}},
                                          {.layout = {.tp = 2, .first_rank = first_rank}}};
        const std::optional<Plan> plan = plan_with(choices, {0, 1}, 3);
        const auto of = [](const workload::StepEstimate& step) {
            return step.problem.samples.front().stages[1].forward_s;
        };
        const double alone_s =
            of(workload::estimate(plan.value().scenario, *table_, *probes_, subject_->device,
                                  subject_->options, subject_->steps.front()));
        EXPECT_EQ(of(subject_->estimate(plan->scenario, 0)), alone_s) << first_rank;
        return alone_s;
    };
    const double across_s = forward_s(1), within_s = forward_s(0);
    EXPECT_GT(across_s, 1.1 * within_s);
}

/// What is known of a section's stages is right where they have other numbers, behind a pipeline.
TEST_F(Choices, TakeTheSameBehindAPipeline) {
    make({});
    for (const int pp : {2, 1}) {
        const std::optional<Plan> plan =
            plan_with({{.layout = {.pp = pp}}, {.layout = {}, .micro_batch = 2}}, {0, 1}, 3);
        const workload::StepEstimate known = subject_->estimate(plan.value().scenario, 0),
                                     alone = workload::estimate(plan->scenario, *table_, *probes_,
                                                                subject_->device, subject_->options,
                                                                subject_->steps.front());
        ASSERT_EQ(known.problem.stages.size(), static_cast<std::size_t>(pp) + 1);
        EXPECT_GT(known.problem.stages.back().lacking_backward_s, 0);
        for (std::size_t k = 0; k < known.problem.stages.size(); ++k)
            EXPECT_EQ(known.problem.stages[k].lacking_backward_s, alone.problem.stages[k].lacking_backward_s)
                << pp << ", stage " << k;
    }
}

}  // namespace
}  // namespace maestro::plan
