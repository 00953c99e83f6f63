#include "train/planner.hpp"

#include "comm/environment.hpp"
#include "schedule/policies.hpp"

namespace maestro::train {

Planner::Planner(const Job& job)
    : job_(job),
      order_(job.launch().deck.run.seed, job.table().size(), job.launch().deck.data.global_batch),
      costs_(job),
      plans_([this](std::int64_t step) { return make(step); }) {}

/// In the planner's thread.
schedule::StepPlan Planner::make(std::int64_t step) {
    const config::Schedule& settings = job_.launch().deck.schedule;
    schedule::Problem problem = job_.problem();
    for (const std::int64_t id : order_.batch(step - 1)) problem.samples.push_back(job_.costs().of(id));
    for (schedule::SampleCost& cost : problem.samples) costs_.correct(cost);
    return schedule::make_plan(settings.policy, problem, step, settings.moves);
}

schedule::StepPlan Planner::next(std::int64_t step, double began_s) {
    TimedPlan timed = plans_.take(step);
    totals_.add(timed, first_ ? 0 : comm::now_s() - began_s);  // nothing could hide the first one
    first_ = false;
    costs_.show_planner();
    if (step < job_.launch().deck.train.steps) plans_.prepare(step + 1);
    return std::move(timed.plan);
}

std::vector<std::string> Planner::describe() const {
    std::vector<std::string> names;
    for (const auto& section : job_.launch().deck.graph.sections) names.push_back(section.name);
    std::vector<std::string> lines = totals_.describe(names);
    for (std::string& line : costs_.describe()) lines.push_back(std::move(line));
    return lines;
}

}  // namespace maestro::train
