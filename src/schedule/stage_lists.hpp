// StageLists: the order of the micro-batches of a section, and what follows from it for each of its stages.
#pragma once

#include <vector>

#include "schedule/machine.hpp"

namespace maestro::schedule {

/// The first stage of a section chooses the order of a replica's micro-batches while the step is executed.
/// All other stages run their forwards in that order. With backwards first and windows of as many
/// micro-batches as stages follow, a pipeline then runs 1F1B (Narayanan et al., "PipeDream", 2019).
class StageLists {
public:
    /// `machine` is kept by reference.
    explicit StageLists(const Machine& machine);
    /// Call before every run.
    void begin();
    /// The forward of a node of a section with several stages has started.
    void started(const Node& n);
    /// Returns the next forward of a stage that is not the first of its section, -1 if the stages before it
    /// have started no other.
    int next_forward(int stage, int replica) const {
        const std::vector<int>& order = order_[slot(first_stage_[stage], replica)];
        const std::size_t at = done_[slot(stage, replica)];
        return at < order.size() ? machine_.first_node(stage, replica) + order[at] : -1;
    }
    int first_stage(int stage) const { return first_stage_[stage]; }
    /// Returns the place of a node's micro-batch in the order. Its forward must have started in the first
    /// stage.
    int place(const Node& n) const { return place_[machine_.in_stage(n, first_stage_[n.stage])]; }

private:
    std::size_t slot(int stage, int replica) const { return slots_[stage] + replica; }

    const Machine& machine_;
    std::vector<int> first_stage_, slots_;  ///< [stage]
    std::vector<std::vector<int>> order_;   ///< [slot of a first stage], indices of micro-batches
    std::vector<std::size_t> done_;         ///< [slot], forwards that have started
    std::vector<int> place_;                ///< [node of a first stage]
};

}  // namespace maestro::schedule
