// What rank 0 tells all ranks between two steps.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::train {

struct StepCommand {
    bool stop = false;           ///< the run ends here; there is no plan
    bool flush_metrics = false;  ///< the metrics so far go to the file before the step
    schedule::StepPlan plan = {};
};

/// Collective: rank 0's command to all ranks.
void broadcast(const comm::Communicator& world, StepCommand& command);

}  // namespace maestro::train
