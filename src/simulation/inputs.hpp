// What a step on paper is made of: the samples and sizes of a deck on the machines of a cluster file.
#pragma once

#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/deck.hpp"
#include "schedule/problem.hpp"
#include "workload/memory.hpp"
#include "workload/step_end.hpp"

namespace maestro::simulation {

struct Inputs {
    schedule::Problem problem;
    double tokens = 0;                    ///< of the sections with a loss, over the step; 0: not known
    workload::MemoryPlan memory;          ///< empty where no models are known, as the next
    std::vector<workload::StepEnd> ends;  ///< by section
    std::vector<workload::StepEnd> one_size_ends;
    double device_memory = 0;  ///< bytes of a rank
    double latency_s = 0;      ///< of a message
};

/// The deck's step (counted from 1), with the task times of its models on the cluster. Windows of 0 are
/// chosen from the device's memory. With `measured` (a run directory, or "") forward and backward times of
/// each section are scaled to those that the run's tasks took. Throws what reading samples and metrics
/// throws.
Inputs inputs_on(const config::Deck& deck, const config::Cluster& cluster, std::int64_t step,
                 const std::string& measured);

}  // namespace maestro::simulation
