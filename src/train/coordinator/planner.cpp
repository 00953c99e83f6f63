#include "train/coordinator/planner.hpp"

#include <utility>

#include "comm/environment.hpp"
#include "schedule/policies.hpp"

namespace maestro::train {

Planner::Planner(const config::Deck& deck, const schedule::Problem& problem, const workload::CostModel* costs,
                 std::int64_t samples)
    : deck_(deck),
      problem_(problem),
      costs_(costs),
      order_(deck.run.seed, samples, deck.data.global_batch),
      learning_(deck.schedule.costs == "measured", deck.sections.size(), deck.time_scale()),
      plans_([this](std::int64_t step) { return make(step); }) {}

/// In the planner's thread.
schedule::StepPlan Planner::make(std::int64_t step) {
    schedule::Problem problem = problem_;
    for (const std::int64_t id : order_.batch(step - 1)) problem.samples.push_back(costs_->of(id));
    for (schedule::SampleCost& cost : problem.samples) learning_.correct(cost);
    return schedule::make_plan(deck_.schedule.policy, problem, step, deck_.schedule.moves);
}

schedule::StepPlan Planner::next(std::int64_t step, double began_s) {
    TimedPlan timed = plans_.take(step);
    totals_.add(timed, first_ ? 0 : comm::now_s() - began_s);  // nothing could hide the first one
    first_ = false;
    learning_.update_planner();
    if (step < deck_.train.steps) plans_.prepare(step + 1);
    return std::move(timed.plan);
}

std::vector<std::string> Planner::describe() const {
    std::vector<std::string> names;
    for (const config::Section& section : deck_.sections) names.push_back(section.name);
    std::vector<std::string> lines = totals_.describe(names);
    for (std::string& line : learning_.describe(names)) lines.push_back(std::move(line));
    return lines;
}

}  // namespace maestro::train
