// The cost of a step after its last task: reducing gradients over the replicas of a stage, the optimizer,
// and gathering the new weights. The same operations and collectives run on the meta backend as in training.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.hpp"
#include "graph/section_graph.hpp"
#include "model/module.hpp"

namespace maestro::workload {

struct StepEnd {
    double reduce_s = 0;  ///< of one rank: gradients reduced, the norm of its shard
    double update_s = 0;  ///< its shard updated, all weights gathered, gradients zeroed
};

class Probes;
struct Scenario;

/// Runs the end of a step on the meta backend: on this rank of the mesh, 0 where nothing is trained.
StepEnd measure_step_end(const model::ModelSpec& spec, const model::Role& role, parallel::Mesh mesh,
                         const backend::DeviceRates& rates);

/// Returns the end of a step in every stage, on the scenario's cluster.
std::vector<StepEnd> step_ends(const Scenario& scenario, Probes& probes);

/// Returns the seconds from the start of a step to its end. `tasks_end_s[lane]`: when the lane ends its last
/// task. Every rank reduces its stages in the order of their numbers, all ranks join the norm of the
/// gradient, then every rank updates its stages. `latency_s`: the latency of a message.
double step_seconds(const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                    std::vector<double> tasks_end_s, double latency_s);

}  // namespace maestro::workload
