// The inputs of a simulated step: the samples of a step and their costs on the machines of a cluster.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/samples.hpp"
#include "workload/counts.hpp"
#include "workload/estimate.hpp"
#include "workload/rank_device.hpp"
#include "workload/scenario.hpp"

namespace maestro::simulation {

/// Returns the problem with the times that the micro-batches of a plan have.
using BatchTimes = std::function<schedule::Problem(schedule::Problem, const schedule::StepPlan&)>;

struct Inputs : workload::StepEstimate {
    BatchTimes batch_times;                    ///< empty where samples have their own times
    std::vector<workload::StepCounts> counts;  ///< by section; empty without models
    double device_memory = 0;                  ///< bytes that are free for a rank
    std::int64_t step = 1;
    double measured_s =
        0;              ///< of a replay: from the start of the first task to the end of the last, in the run
    double rest_s = 0;  ///< of a replay: the rest of its step
};

/// A run that provides task times, as a directory or "".
struct Source {
    std::string replay = {};  ///< replaces the times of one step by those of its tasks
    std::int64_t step = 0;    ///< counted from 1; 0: the first, of a replay the last recorded one
    /// The device of each rank, where the scenario has a cluster, and how the run is planned there.
    workload::RankDevice device = {};
    workload::PlanOptions plan = {};
};

/// A step of the scenario with these samples, whose marker it takes. Task times are those of
/// its models on its cluster, or of the replayed run; without a cluster links cost nothing. Windows of 0 are
/// chosen from the device's memory as `train` does, without a cluster they are those of the replayed run.
/// `samples` must outlive the inputs.
/// Throws what reading metrics throws, and refuses samples as `train` does.
Inputs inputs_of(workload::Scenario scenario, const data::Samples& samples, const Source& source);

}  // namespace maestro::simulation
