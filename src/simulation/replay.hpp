// The tasks that a real run recorded, as input of a simulation.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/section_graph.hpp"
#include "io/metrics_file.hpp"
#include "schedule/problem/problem.hpp"

namespace maestro::simulation {

/// One recorded step.
struct Replay {
    struct Measured {  ///< a micro-batch
        std::vector<std::int64_t> samples;
        double seconds[2] = {0, 0};  ///< forward, backward
    };
    std::string run;
    std::int64_t step = 0;
    std::vector<std::vector<Measured>> stages;  ///< by stage
    double tasks_s = 0;                         ///< from the start of the first task to the end of the last
    double rest_s = 0;           ///< the rest of the step: gradients, optimizer, the step boundary
    std::vector<int> windows{};  ///< by stage, the run's; empty: not recorded
};

/// `step` 0: the last one that was recorded completely.
Replay read_replay(const std::string& run, std::int64_t step, const graph::SectionGraph& graph);

/// Replaces the costs of the samples of `batch` (the deck's, of that step) by the times of their tasks. The
/// samples of a micro-batch share its time in proportion to their costs. Error(bad_data) if the run had other
/// samples in that step.
void replace_times(std::vector<schedule::SampleCost>& costs, const Replay& replay,
                   std::span<const std::int64_t> batch, const graph::SectionGraph& graph);

}  // namespace maestro::simulation
