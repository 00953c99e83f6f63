// When a step ends: its tasks, the sums of gradients that run beside them, the norm and the update; and when
// the gathers that run beside the next step's tasks have delivered its weights. Follows
// train/step/parameter_sync on real ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/section_graph.hpp"
#include "workload/step_end.hpp"

namespace maestro::workload {

/// Seconds from the step's start. A rank without a backward of the stage has final gradients from the start.
struct LastBackward {
    double start_s = 0, end_s = 0;
};

struct StepTail {
    double end_s = 0;  ///< all ranks have updated their shards: the next step begins
    /// By stage and group: when all of its weights have arrived, in seconds of the next step; negative where
    /// that is before it begins.
    std::vector<std::vector<double>> weights_s;
};

/// `last[stage][replica group]`; `tasks_end_s[lane]`: when the lane ends its last task; `latency_s`: of a
/// message. A stage sums its groups one after another, each when it is final on all replicas. The stages of a
/// rank share its network. Sums of a tied embedding begin when both stages that hold it are there.
StepTail step_tail(const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                   const std::vector<std::vector<LastBackward>>& last, const std::vector<double>& tasks_end_s,
                   double latency_s);

/// Returns the groups, as indices of `end`, in the order in which a stage sums them: backward finishes the
/// last one first, and a tied embedding waits for its other stage.
std::vector<std::size_t> sum_order(const StepEnd& end);

/// Returns the seconds of the norm of all gradients, an all-reduce over all ranks: up and down a tree.
double norm_seconds(const graph::SectionGraph& graph, double latency_s);

/// Returns how many seconds longer the first forward of a stage takes, which begins at `start_s` of its step
/// and would take `forward_s`: it waits for each group where it needs it.
double wait_for_weights(const StepEnd& end, const std::vector<double>& weights_s, double start_s,
                        double forward_s);

}  // namespace maestro::workload
