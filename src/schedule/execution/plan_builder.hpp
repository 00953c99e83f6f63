// PlanBuilder: assembles executed sub-problems to a step plan and computes the floats of its tasks.
#pragma once

#include <vector>

#include "schedule/execution/machine.hpp"

namespace maestro::schedule {

class PlanBuilder {
public:
    /// `problem` is kept by reference.
    PlanBuilder(const Problem& problem, int sub_problems);
    /// Adds the execution of sub-problem `sub_problem` (0 .. sub-problems - 1); `batches` are those of the
    /// machine.
    void add(const Machine& machine, const std::vector<Batches>& batches,
             const std::vector<Executed>& executed, int sub_problem);
    double lower_bound_s() const { return plan_.lower_bound_s; }
    StepPlan finish(std::int64_t step);

private:
    int lane_of(const Node& node, int sub_problem) const;

    const Problem& problem_;
    int sub_problems_;
    StepPlan plan_;
    std::vector<double> ends_s_;  ///< [lane], of its sub-problem
};

}  // namespace maestro::schedule
