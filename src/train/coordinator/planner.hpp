// The coordinator's part of a step's border: the plan, made ahead in a thread of its own, and what the tasks
// say of the costs that it is made from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/deck.hpp"
#include "schedule/problem.hpp"
#include "train/coordinator/cost_learning.hpp"
#include "train/coordinator/plan_source.hpp"
#include "workload/data_order.hpp"

namespace maestro::train {

class Planner {
public:
    /// Plans steps of the deck's batches, out of `samples` samples with these costs. `problem` holds the
    /// sections, edges and ranks, and no samples. All outlive the planner; only the coordinator has costs,
    /// and only it may ask for plans.
    Planner(const config::Deck& deck, const schedule::Problem& problem, const workload::CostModel* costs,
            std::int64_t samples);
    /// The plan of `step`, waited for if need be; that of the next one is begun. `began_s` (comm::now_s()) is
    /// when the step began.
    schedule::StepPlan next(std::int64_t step, double began_s);
    void step_done(const schedule::StepPlan& plan, const StepSums& sums) {
        learning_.step_done(plan, sums, *costs_);
    }
    /// Lines for the log.
    std::vector<std::string> describe() const;

private:
    schedule::StepPlan make(std::int64_t step);

    const config::Deck& deck_;
    const schedule::Problem& problem_;
    const workload::CostModel* costs_;
    workload::DataOrder order_;
    CostLearning learning_;
    PlanTotals totals_;
    bool first_ = true;
    PlanSource plans_;  ///< the last member: its thread uses the others
};

}  // namespace maestro::train
