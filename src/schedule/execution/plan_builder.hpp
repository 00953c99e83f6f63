// PlanBuilder: assembles executed groups to a step plan and computes the floats of its tasks.
#pragma once

#include <vector>

#include "schedule/execution/machine.hpp"

namespace maestro::schedule {

class PlanBuilder {
public:
    /// `problem` is kept by reference.
    PlanBuilder(const Problem& problem, int groups);
    /// Adds the execution of group `group` (0 .. groups - 1); `batches` are those of the machine.
    void add(const Machine& machine, const std::vector<Batches>& batches,
             const std::vector<Executed>& executed, int group);
    double lower_bound_s() const { return plan_.lower_bound_s; }
    StepPlan finish(std::int64_t step);

private:
    int lane_of(const Node& node, int group) const;

    const Problem& problem_;
    int groups_;
    StepPlan plan_;
    std::vector<double> ends_s_;  ///< [lane], of its group
};

}  // namespace maestro::schedule
