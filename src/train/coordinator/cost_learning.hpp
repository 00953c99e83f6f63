// schedule.costs = "measured": the coordinator corrects the cost model by the measured times of the run's
// tasks.
#pragma once

#include <string>
#include <vector>

#include "graph/section_graph.hpp"
#include "schedule/problem/step_plan.hpp"
#include "train/step/step_sums.hpp"
#include "workload/correction.hpp"
#include "workload/cost_model.hpp"

namespace maestro::train {

class CostLearning {
public:
    /// `graph` must outlive the object. `time_scale`: seconds of the run for a second of the cost model.
    /// Unless `enabled`, nothing is learned or corrected.
    CostLearning(bool enabled, const graph::SectionGraph& graph, double time_scale);
    /// Adds the task times of a step, summed over the ranks, and what `costs` predicted for them.
    void step_done(const schedule::StepPlan& plan, const StepSums& sums, const workload::CostModel& costs);
    /// Copies what has been learned to the planner, whose thread must be idle.
    void update_planner() { planning_ = learned_; }
    /// Corrects the costs of a step. Called in the planner's thread.
    void correct(schedule::Problem& problem) const;
    /// Returns lines for the log, one for each stage.
    std::vector<std::string> describe() const;

private:
    void add_predicted(int section, const schedule::MicroBatch& batch, const workload::CostModel& costs);

    bool enabled_;
    const graph::SectionGraph& graph_;
    double time_scale_;
    workload::Correction learned_;   ///< from all steps so far
    workload::Correction planning_;  ///< the planner's copy
};

}  // namespace maestro::train
