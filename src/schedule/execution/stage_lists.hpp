// StageLists: the order of the micro-batches of a section, and what follows from it for each of its stages.
#pragma once

#include <vector>

#include "schedule/execution/interleaving.hpp"
#include "schedule/execution/machine.hpp"

namespace maestro::schedule {

/// The first stage of a section chooses the order of a group's micro-batches while the step is executed.
/// All other stages run their forwards in that order. With backwards first and windows of as many
/// micro-batches as stages follow, a pipeline then runs 1F1B (Narayanan et al., "PipeDream", 2019).
///
/// Of a section with several chunks each lane has a list of tasks (interleaving.hpp), in which micro-batches
/// are numbered in that order. In a section with a loss all tasks follow it, elsewhere forwards alone.
class StageLists {
public:
    /// `machine` is kept by reference.
    explicit StageLists(const Machine& machine);
    /// Call before every run.
    void begin();
    /// The task of a node of a section with several stages has started.
    void started(const Node& n, Phase phase);
    /// Returns the next forward of a stage that is not the first of its section, -1 if the stages before it
    /// have started no other.
    int next_forward(int stage, int group) const {
        const std::vector<int>& order = order_[slot(first_stage_[stage], group)];
        const std::size_t at = done_[slot(stage, group)];
        return at < order.size() ? machine_.first_node(stage, group) + order[at] : -1;
    }
    int first_stage(int stage) const { return first_stage_[stage]; }
    /// Returns the place of a node's micro-batch in the order. Its forward must have started in the first
    /// stage.
    int place(const Node& n) const { return place_[machine_.in_stage(n, first_stage_[n.stage])]; }

    /// Returns whether backwards of the stage too follow the list of their lane.
    bool fixed(int stage) const { return fixed_[stage] != 0; }
    /// Returns whether a forward of the stage may be the next of its lane: always with one chunk.
    bool in_turn(int stage, int group) const;
    /// Returns the backward of the stage that is the next task of its lane, -1 if another task is. Call for
    /// fixed() stages alone.
    int next_backward(int stage, int group) const;
    /// Returns the place of a node's backward among those of its lane.
    int backward_turn(const Node& n) const;

private:
    struct Line {                      ///< of a lane with several chunks
        int count = -1;                ///< micro-batches
        std::vector<ChunkTask> tasks;  ///< without backwards if these are not fixed
        std::size_t next = 0;
        std::vector<int> turns;  ///< [chunk * count + place], of backwards
    };
    int chunk_of(int stage) const {
        return (stage - first_stage_[stage]) / machine_.instance().shape(stage).lane_stride;
    }
    /// The line of the stage's lane, which belongs to its stage in the first chunk.
    std::size_t line_of(int stage, int group) const {
        const int stride = machine_.instance().shape(stage).lane_stride;
        return slot(first_stage_[stage] + (stage - first_stage_[stage]) % stride, group);
    }
    int node_of(int stage, int group, int place) const {
        return machine_.first_node(stage, group) + order_[slot(first_stage_[stage], group)][place];
    }
    std::size_t slot(int stage, int group) const { return slots_[stage] + group; }

    const Machine& machine_;
    std::vector<int> first_stage_, slots_;  ///< [stage]
    std::vector<std::vector<int>> order_;   ///< [slot of a first stage], indices of micro-batches
    std::vector<std::size_t> done_;         ///< [slot], forwards that have started
    std::vector<int> place_;                ///< [node of a first stage]
    std::vector<char> fixed_;               ///< [stage]
    std::vector<Line> lines_;               ///< [slot of a stage in the first chunk]
};

}  // namespace maestro::schedule
