// schedule.costs = "measured": corrects the cost model by the measured times of the run's tasks. On the
// coordinator.
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
    /// `time_scale`: seconds of the run for one of the cost model. Unless `enabled`, nothing is learned and
    /// nothing corrected.
    CostLearning(bool enabled, std::size_t sections, double time_scale);
    /// The task times of a step, summed over the ranks, which plans predicted by `costs`.
    void step_done(const schedule::StepPlan& plan, const StepSums& sums, const workload::CostModel& costs);
    /// Hands what is known to the planner, whose thread must be idle.
    void update_planner() { planning_ = learned_; }
    /// In the planner's thread.
    void correct(schedule::SampleCost& cost) const;
    /// Lines for the log; `sections`: their names.
    std::vector<std::string> describe(const std::vector<std::string>& sections) const;

private:
    bool enabled_;
    double time_scale_;
    workload::Correction learned_;   ///< by all steps so far
    workload::Correction planning_;  ///< the planner's copy
};

}  // namespace maestro::train
