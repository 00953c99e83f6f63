// What a step costs after its last task: summing gradients over the replicas of a section, its optimizer and
// handing the new weights round. Element-wise work is counted by the same operations on the meta backend,
// messages by the same collectives on paper.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.hpp"
#include "graph/section_graph.hpp"
#include "model/module.hpp"

namespace maestro::workload {

struct StepEnd {
    double reduce_s = 0;  ///< of one replica: gradients summed, its share's norm
    double update_s = 0;  ///< its share updated, the weights of all gathered, gradients zeroed
};

class Probes;
struct Scenario;

/// Runs the end of a step on the meta backend: on this rank of the mesh, 0 where nothing is trained.
StepEnd measure_step_end(const model::ModelSpec& spec, const model::Role& role, parallel::Mesh mesh,
                         const backend::DeviceRates& rates);

/// The end of a step in every section, on the scenario's cluster.
std::vector<StepEnd> step_ends(const Scenario& scenario, Probes& probes);

/// Seconds from the start of a step to its end. `tasks_end_s[lane]`: when it ends its last task. Every rank
/// reduces its sections in the order of their colours, all join the gradient's norm, then every rank updates
/// its sections; `latency_s` is that of a message.
double step_seconds(const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                    std::vector<double> tasks_end_s, double latency_s);

}  // namespace maestro::workload
