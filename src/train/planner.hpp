// The coordinator's part of a step's border: the plan, made ahead in a thread of its own, and what the tasks
// say of the costs that it is made from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/cost_learning.hpp"
#include "train/job.hpp"
#include "train/plan_source.hpp"
#include "workload/data_order.hpp"

namespace maestro::train {

class Planner {
public:
    /// `job` outlives it.
    explicit Planner(const Job& job);
    /// The plan of `step`, waited for if need be; that of the next one is begun. `began_s` (comm::now_s()) is
    /// when the step began.
    schedule::StepPlan next(std::int64_t step, double began_s);
    void step_done(const schedule::StepPlan& plan, const StepSums& sums) { costs_.step_done(plan, sums); }
    /// Lines for the log.
    std::vector<std::string> describe() const;

private:
    schedule::StepPlan make(std::int64_t step);

    const Job& job_;
    workload::DataOrder order_;
    CostLearning costs_;
    PlanTotals totals_;
    bool first_ = true;
    PlanSource plans_;  ///< the last member: its thread uses the others
};

}  // namespace maestro::train
