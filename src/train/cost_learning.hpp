// schedule.costs = "measured": what the tasks of the run say of the cost model. On the coordinator.
#pragma once

#include <string>
#include <vector>

#include "train/job.hpp"
#include "train/step_sums.hpp"
#include "workload/correction.hpp"

namespace maestro::train {

class CostLearning {
public:
    /// `job` outlives it. Unless the deck asks for it, nothing is learned and nothing corrected.
    explicit CostLearning(const Job& job);
    /// The task times of a step, summed over the ranks.
    void step_done(const schedule::StepPlan& plan, const StepSums& sums);
    /// Hands what is known to the planner, whose thread must be idle.
    void show_planner() { planning_ = learned_; }
    /// In the planner's thread.
    void correct(schedule::SampleCost& cost) const;
    /// Lines for the log.
    std::vector<std::string> describe() const;

private:
    const Job& job_;
    bool on_;
    workload::Correction learned_;   ///< by all steps so far
    workload::Correction planning_;  ///< the planner's copy
};

}  // namespace maestro::train
