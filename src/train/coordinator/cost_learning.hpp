// schedule.costs = "measured": the coordinator corrects the cost model by the measured times of the run's
// tasks.
#pragma once

#include <string>
#include <vector>

#include "schedule/step_plan.hpp"
#include "train/step/step_sums.hpp"
#include "workload/correction.hpp"
#include "workload/cost_model.hpp"

namespace maestro::train {

class CostLearning {
public:
    /// `section_of[s]`: the section of stage s. `time_scale`: seconds of the run for a second of the cost
    /// model. Unless `enabled`, nothing is learned or corrected.
    CostLearning(bool enabled, std::vector<int> section_of, double time_scale);
    /// Adds the task times of a step, summed over the ranks, and what `costs` predicted for them.
    void step_done(const schedule::StepPlan& plan, const StepSums& sums, const workload::CostModel& costs);
    /// Copies what has been learned to the planner, whose thread must be idle.
    void update_planner() { planning_ = learned_; }
    /// Corrects the cost of a sample. Called in the planner's thread.
    void correct(schedule::SampleCost& cost) const;
    /// Returns lines for the log; `stages`: their names.
    std::vector<std::string> describe(const std::vector<std::string>& stages) const;

private:
    bool enabled_;
    std::vector<int> section_of_;
    double time_scale_;
    workload::Correction learned_;   ///< from all steps so far
    workload::Correction planning_;  ///< the planner's copy
};

}  // namespace maestro::train
