// The coordinator's planner: makes the plan of the next step in a thread of its own while the current one
// runs.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "schedule/step_plan.hpp"

namespace maestro::train {

/// One plan and how long it took to make.
struct TimedPlan {
    schedule::StepPlan plan;
    double planning_s = 0;
};

/// `make(step)` is called in the planner's thread, one step at a time; it must not use MPI or HDF5.
class PlanSource {
public:
    explicit PlanSource(std::function<schedule::StepPlan(std::int64_t)> make) : make_(std::move(make)) {}
    /// Begins the plan of `step`, unless it is begun already.
    void prepare(std::int64_t step);
    /// The plan of `step`, waiting for it if need be; prepare(step) is implied. Errors of the planner are
    /// thrown here.
    TimedPlan take(std::int64_t step);

private:
    std::function<schedule::StepPlan(std::int64_t)> make_;
    std::future<TimedPlan> next_;
    std::int64_t next_step_ = -1;
};

/// What the plans of a run were like, for the log; on the coordinator.
class PlanTotals {
public:
    /// `waited_s`: for the plan at the step's border.
    void add(const TimedPlan& timed, double waited_s);
    /// Lines of text; `names` of the sections. Empty without a step.
    std::vector<std::string> describe(const std::vector<std::string>& names) const;

private:
    std::int64_t steps_ = 0, window_limited_ = 0;
    double planning_s_ = 0, waited_s_ = 0;
    double planned_s_ = 0, bound_s_ = 0;    ///< sums over the plans, by the cost model
    std::vector<double> load_s_;            ///< likewise, of a replica of each section
    std::map<int, std::int64_t> critical_;  ///< steps by critical section
};

}  // namespace maestro::train
