#include "train/coordinator/planner.hpp"

#include <utility>

#include "comm/environment.hpp"
#include "schedule/policies/policies.hpp"

namespace maestro::train {

Planner::Planner(const config::Deck& deck, const graph::SectionGraph& graph, const schedule::Problem& problem,
                 const workload::CostModel* costs, StepBatches batches, comm::Waiter& waiter)
    : deck_(deck),
      graph_(graph),
      problem_(problem),
      costs_(costs),
      batches_(std::move(batches)),
      waiter_(waiter),
      learning_(deck.schedule.costs == "measured", graph, deck.time_scale()),
      plans_([this](std::int64_t step) { return problem_of(step); },
             [settings = deck.schedule](const schedule::Problem& of_step, std::int64_t step,
                                        const std::stop_token& unwanted) {
                 return schedule::make_plan(settings.policy, of_step, step, {.moves = settings.moves},
                                            unwanted);
             }) {}

/// In the planner's thread.
schedule::Problem Planner::problem_of(std::int64_t step) const {
    schedule::Problem problem = problem_;
    for (const std::int64_t id : batches_.samples(step)) problem.samples.push_back(costs_->of(id));
    learning_.correct(problem);
    return problem;
}

schedule::StepPlan Planner::next(std::int64_t step, double began_s) {
    TimedPlan timed =
        plans_.take(step, [this](const auto& ready, const auto& what) { waiter_.wait_until(ready, what); });
    totals_.add(timed, first_ ? 0 : comm::now_s() - began_s);  // no step hides the first plan
    first_ = false;
    // Between two plans the planner's thread is idle, so that only now its copy may change. The next plan,
    // which begins below, already uses what the last step has shown.
    learning_.update_planner();
    if (step < batches_.steps) plans_.prepare(step + 1);
    return std::move(timed.plan);
}

std::vector<std::string> Planner::describe() const {
    const std::vector<std::string> names = graph_.stage_names();
    std::vector<std::string> lines = totals_.describe(names);
    for (std::string& line : learning_.describe()) lines.push_back(std::move(line));
    return lines;
}

}  // namespace maestro::train
