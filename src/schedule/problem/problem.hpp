// Problem: the input of the scheduler, a hybrid flow shop. It has the stages of all sections with their
// replica groups, edges between stages, and the cost of every sample in every stage.
//
// In this folder, a group is a replica group. Mostly it is one replica. Several replicas of a section may
// share a lane, as those of an encoder do that runs on the ranks of a language model with more tensor
// parallelism. They are then a group of several parts: they run every micro-batch together, each one a part
// of its samples.
//
// A section decides which group takes which samples, in which micro-batches. Its stages, one or a pipeline
// of several, run these micro-batches. A pipeline has several lanes in every group, one for each pipeline
// rank. Stages take these lanes in turn: with as many stages as lanes each has its own, with more of them
// (chunks, the virtual stages of Megatron) every lane has several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace maestro::schedule {

struct TaskCost {
    double forward_s = 0;
    double backward_s = 0;
    bool active = false;    ///< the sample has work for the section, and so for all of its stages
    double transfer_s = 0;  ///< of the stage's output or its gradient over an edge
    /// The share of these seconds for which all parts of the lane work on the sample together, each on an
    /// equal part, such as in experts that replicas share. For the rest, the sample's part works alone.
    double common = 0;
};

/// A stage of a section. The stages of a section are consecutive, in the order of their layers, and have
/// equally many groups, equal micro-batches and equal `backward`.
struct StageShape {
    int section = 0;
    int groups = 1;
    int first_lane = 0;   ///< of group 0; colocated sections share lanes
    int lane_stride = 1;  ///< from a group to the next: the lanes of a group. Stage k of the section runs
                          ///< on lane k mod lane_stride of its group
    int chunks = 1;       ///< stages of the section on each of these lanes
    int parts = 1;        ///< of a lane, each of which has samples of every micro-batch to itself
    int micro_batch = 1;  ///< samples, of all parts together; a multiple of `parts`
    int window = 1;       ///< micro-batches in flight per group, from the start of forward to the end of
                     ///< backward (without a backward: to the end of forward on every consumer); 0: no limit
    bool backward = true;
    /// Seconds of a task for each sample that its micro-batch lacks, of a part alone where there are several.
    /// The cost of a sample is its share of a full micro-batch. In that is a share of what a task takes
    /// whatever its samples are, all of which a micro-batch takes that is not full.
    double lacking_forward_s = 0, lacking_backward_s = 0;
    bool loss = false;  ///< it computes a loss, and runs each backward right after its forward
    /// Seconds for which the gradients of all groups are summed at the end of a step, beside the last
    /// backward, and their weights gathered at its beginning; 0: not known.
    double sum_s = 0, gather_s = 0;

    void set_lacking(const TaskCost& cost) {
        lacking_forward_s = cost.forward_s;
        lacking_backward_s = cost.backward_s;
    }
    int lane(int group) const { return first_lane + group * lane_stride; }
    /// Returns the group whose lane this is, which must be one of the stage's.
    int group_on(int lane) const { return (lane - first_lane) / lane_stride; }
    /// Returns how many samples the stage may work on at a time.
    int machines() const { return groups * parts; }
    bool pipelined() const { return lane_stride > 1 || chunks > 1; }
    /// Returns the samples in flight per group if micro-batches are full; at most 2^30.
    int window_samples() const {
        return static_cast<int>(std::min<std::int64_t>(std::int64_t{window} * micro_batch, 1 << 30));
    }
};

struct EdgeShape {
    int from = 0, to = 0;  ///< stages
    bool gradient = false;
    double latency_s = 0;    ///< from the end of a task to the arrival of its rows, without their transfer
    bool colocated = false;  ///< passes a pointer, without latency or transfer
    double delay_s(double transfer_s) const { return colocated ? 0 : latency_s + transfer_s; }
};

struct SampleCost {
    std::int64_t id = 0;
    std::vector<TaskCost> stages;
};

struct Problem {
    std::vector<StageShape> stages;
    std::vector<EdgeShape> edges;  ///< acyclic; the number of groups at one end is a multiple of the other's
    int lanes = 1;                 ///< a lane runs one task at a time: the ranks of a stage, together
    std::vector<SampleCost> samples;
    /// A backward of zero seconds means that there is none, as in times from a file. Otherwise every active
    /// sample of a section with a backward has one.
    bool zero_is_none = false;

    /// Returns whether a section has several stages.
    bool pipelined() const {
        return std::any_of(stages.begin(), stages.end(), [](const StageShape& s) { return s.pipelined(); });
    }
    int sections() const { return stages.empty() ? 0 : stages.back().section + 1; }
    /// Returns whether a section has a loss, which its last stage computes.
    bool of_loss(int section) const {
        return std::any_of(stages.begin(), stages.end(),
                           [&](const StageShape& s) { return s.section == section && s.loss; });
    }
    /// Returns whether the sample has a backward task in the stage.
    bool runs_backward(const SampleCost& sample, std::size_t stage) const {
        const TaskCost& cost = sample.stages[stage];
        return cost.active && stages[stage].backward && (cost.backward_s > 0 || !zero_is_none);
    }
};

}  // namespace maestro::schedule
