// What a step costs after its last task: summing gradients over the replicas of a section, its optimizer and
// handing the new weights round. Element-wise work is counted by the same operations on the meta backend,
// messages by the same collectives on paper.
#pragma once

#include <cstdint>
#include <vector>

#include "config/cluster.hpp"
#include "config/deck.hpp"

namespace maestro::workload {

struct StepEnd {
    double reduce_s = 0;  ///< of one replica: gradients summed, its share's norm
    double update_s = 0;  ///< its share updated, the weights of all gathered, gradients zeroed
};

/// Of every section, 0 where nothing is trained. With `everywhere` each section has a replica on every rank
/// of the world.
std::vector<StepEnd> step_ends(const config::Deck& deck, std::int32_t marker, const config::Cluster& cluster,
                               bool everywhere = false);

/// Seconds from the start of a step to its end. `tasks_end_s[lane]`: when it ends its last task. Every rank
/// reduces its sections in the order of their colours, all join the gradient's norm, then every rank updates
/// its sections; `latency_s` is that of a message.
double step_seconds(const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                    std::vector<double> tasks_end_s, double latency_s, bool everywhere = false);

}  // namespace maestro::workload
