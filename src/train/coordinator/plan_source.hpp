// Makes the plan of the next step in a thread of the coordinator, while the current step runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::train {

/// One plan and how long it took to make.
struct TimedPlan {
    schedule::StepPlan plan;
    double planning_s = 0;
};

/// A plan that is no longer wanted is waited for only as long as its policy needs to notice that. A thread
/// that does not end is left behind: it has copies of all values that it needs, and ends with the plan or the
/// process.
class PlanSource {
public:
    /// The samples of a step with their costs, and the sections that they go through. Called in the planner's
    /// thread; it has to be quick, because the destructor waits for it. It may not use MPI or HDF5.
    using ProblemOf = std::function<schedule::Problem(std::int64_t step)>;
    /// Makes the plan of a problem. Copied into the planner's thread, which may outlive the source: it may
    /// refer to nothing but its arguments and what it holds by value. Ends soon after `unwanted` is stopped.
    using Policy = std::function<schedule::StepPlan(const schedule::Problem& problem, std::int64_t step,
                                                    const std::stop_token& unwanted)>;

    /// `patience`: how long a policy may take to end.
    PlanSource(ProblemOf problem_of, Policy policy, std::chrono::seconds patience = std::chrono::seconds(10))
        : problem_of_(std::move(problem_of)), policy_(std::move(policy)), patience_(patience) {}
    ~PlanSource();
    PlanSource(const PlanSource&) = delete;
    PlanSource& operator=(const PlanSource&) = delete;

    /// Begins the plan of `step`, unless it has begun already.
    void prepare(std::int64_t step);
    /// Waits until `ready` returns true, with a deadline; `what` names what is waited for. See comm::Waiter.
    using Wait =
        std::function<void(const std::function<bool()>& ready, const std::function<std::string()>& what)>;
    /// Returns the plan of `step`; prepare(step) is implied. Throws errors of the planner and of `wait`.
    TimedPlan take(std::int64_t step, const Wait& wait);

private:
    void wait_for_problem();
    void end_thread();

    ProblemOf problem_of_;
    Policy policy_;
    std::chrono::seconds patience_;
    std::stop_source unwanted_;  ///< of the last plan that was begun, as the next two
    std::thread thread_;
    std::future<void> problem_made_, ended_;
    std::future<TimedPlan> next_;
    std::int64_t next_step_ = -1;
};

/// Statistics of the plans of a run, for the log of the coordinator.
class PlanTotals {
public:
    /// `waited_s`: how long the step waited for its plan.
    void add(const TimedPlan& timed, double waited_s);
    /// Returns lines of text, none without a step. `names`: of the stages.
    std::vector<std::string> describe(const std::vector<std::string>& names) const;

private:
    std::int64_t steps_ = 0, window_limited_ = 0;
    double planning_s_ = 0, waited_s_ = 0;
    double planned_s_ = 0, bound_s_ = 0;    ///< sums over the plans, by the cost model
    std::vector<double> load_s_;            ///< sums of the work of a replica group, by stage
    std::map<int, std::int64_t> critical_;  ///< steps by critical stage
};

}  // namespace maestro::train
