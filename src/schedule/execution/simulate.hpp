// A discrete-event simulation of one step under a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

struct TimedTask {
    int lane = 0;
    int group = 0;
    Task task;
    double start_s = 0;
    double end_s = 0;
};

struct Timeline {
    std::vector<TimedTask> tasks;  ///< in order of their start
    double makespan_s = 0;
    bool stuck = false;  ///< tasks are left that cannot start
};

enum class Dispatch {
    planned,  ///< every lane keeps the order of its agenda
    ready,    ///< a lane starts the first task of its agenda that can start
};

/// Returns the problem with the times of the plan's tasks multiplied by log-normal random numbers of mean 1
/// and this sigma: times that differ from those that the plan was made for. The samples of a micro-batch
/// share the number of its first sample, so that plans with equal micro-batches see equal times.
Problem with_noise(Problem problem, const StepPlan& plan, double sigma, std::uint64_t seed);
/// The same with a random number for every sample.
Problem with_noise(Problem problem, double sigma, std::uint64_t seed);

/// Executes the plan, each task as early as inputs and windows allow. The samples of the plan must be those
/// of the problem.
Timeline simulate(const Problem& problem, const StepPlan& plan, Dispatch dispatch = Dispatch::planned);

/// Executes the step as a framework with one layout does: all lanes are alike, sample i goes to lane i mod
/// lanes, and its tasks run there one after another: forwards upstream first, then the backwards.
/// TimedTask::task.micro_batch is the sample's place in the problem.
Timeline simulate_one_size(const Problem& problem);
/// Returns its lower bound, the larger of the work per lane and the longest sample, seconds.
double one_size_bound(const Problem& problem);

}  // namespace maestro::schedule
