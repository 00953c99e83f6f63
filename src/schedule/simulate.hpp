// A discrete-event simulation of one step under a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/problem.hpp"
#include "schedule/step_plan.hpp"

namespace maestro::schedule {

struct TimedTask {
    int lane = 0;
    int replica = 0;
    Task task;
    double start_s = 0;
    double end_s = 0;
};

struct Timeline {
    std::vector<TimedTask> tasks;  ///< in order of their start
    double makespan_s = 0;
    bool stuck = false;  ///< tasks are left that nothing can start
};

enum class Dispatch {
    planned,  ///< every lane its tasks in strict order
    ready,    ///< a lane starts the first of its order that can start
};

/// The same problem with the times of the plan's tasks multiplied by log-normal numbers of mean 1 and this
/// sigma, by the seed: what a plan may meet that was made for the problem as it was. The samples of a
/// micro-batch share its number, that of its first sample, so that plans with equal micro-batches meet the
/// same.
Problem with_noise(Problem problem, const StepPlan& plan, double sigma, std::uint64_t seed);
/// Every sample for itself.
Problem with_noise(Problem problem, double sigma, std::uint64_t seed);

/// Runs the plan, each task as early as inputs and windows allow. The plan's micro-batches must be made of
/// the problem's samples.
Timeline simulate(const Problem& problem, const StepPlan& plan, Dispatch dispatch = Dispatch::planned);

/// What a monolithic framework does: all lanes are alike, sample i goes to lane i mod lanes, and its tasks
/// run there one after another: forwards upstream first, then the backwards. TimedTask::task.micro_batch is
/// the sample's place in the problem.
Timeline simulate_one_size(const Problem& problem);
/// The larger of the work over the lanes and the longest sample, seconds.
double one_size_bound(const Problem& problem);

}  // namespace maestro::schedule
