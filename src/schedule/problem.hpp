// Problem: the input of the scheduler, a hybrid flow shop. It has sections with their replicas, edges, and
// the cost of every sample in every section.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace maestro::schedule {

struct SectionShape {
    int replicas = 1;
    int first_lane = 0;   ///< replica r runs on lane first_lane + r; colocated sections share lanes
    int micro_batch = 1;  ///< samples
    int window = 1;       ///< micro-batches in flight per replica, from the start of forward to the end of
                     ///< backward (without a backward: to the end of forward on every consumer); 0: no limit
    bool backward = true;
    bool loss = false;  ///< it runs each backward right after its forward

    /// Returns the samples in flight per replica if micro-batches are full; at most 2^30.
    int window_samples() const {
        return static_cast<int>(std::min<std::int64_t>(std::int64_t{window} * micro_batch, 1 << 30));
    }
};

struct EdgeShape {
    int from = 0, to = 0;
    bool gradient = false;
    double latency_s = 0;    ///< from the end of a task to the arrival of its rows, without their transfer
    bool colocated = false;  ///< passes a pointer, without latency or transfer
    double delay_s(double transfer_s) const { return colocated ? 0 : latency_s + transfer_s; }
};

struct TaskCost {
    double forward_s = 0;
    double backward_s = 0;
    bool active = false;    ///< the sample has work for the section
    double transfer_s = 0;  ///< of the section's output or its gradient over an edge
};

struct SampleCost {
    std::int64_t id = 0;
    std::vector<TaskCost> sections;
};

struct Problem {
    std::vector<SectionShape> sections;
    std::vector<EdgeShape> edges;  ///< acyclic, dp(to) a multiple of dp(from)
    int lanes = 1;                 ///< a lane runs one task at a time: the ranks of a replica, together
    std::vector<SampleCost> samples;
    /// A backward of zero seconds means that there is none, as in times from a file. Otherwise every active
    /// sample of a section with a backward has one.
    bool zero_is_none = false;

    /// Returns whether the sample has a backward task in the section.
    bool runs_backward(const SampleCost& sample, std::size_t section) const {
        const TaskCost& cost = sample.sections[section];
        return cost.active && sections[section].backward && (cost.backward_s > 0 || !zero_is_none);
    }
};

}  // namespace maestro::schedule
