// StepPlan: which lane runs which tasks of a step, and in which order. Made by the coordinator, sent to every
// rank as integers.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace maestro::schedule {

enum class Phase : int { forward = 0, backward = 1 };

struct MicroBatch {
    std::vector<std::int64_t> samples;  ///< ids, part after part
    std::vector<int> part_ends = {};    ///< of the samples of each part of the lane; empty if it has one
    int parts() const { return part_ends.empty() ? 1 : static_cast<int>(part_ends.size()); }
    /// Returns the samples of a part of the lane.
    std::span<const std::int64_t> of_part(int part) const;
    bool operator==(const MicroBatch&) const = default;
};

struct Task {
    int stage = 0;
    int micro_batch = 0;  ///< of the lane's replica group of the stage's section
    Phase phase = Phase::forward;
    /// For lanes that start what is ready, by the cost model; only for forwards of a section with a loss.
    /// takes_s: seconds of the forward and its backward. float_s: how much later they may end without making
    /// the step longer, apart from delaying the next task of the lane.
    double takes_s = 0;
    double float_s = std::numeric_limits<double>::infinity();
    bool operator==(const Task&) const = default;
};

struct StepPlan {
    std::int64_t step = 0;
    std::vector<std::vector<std::vector<MicroBatch>>> batches;  ///< [section][replica group][micro-batch]
    std::vector<std::vector<Task>> agendas;                     ///< [lane], in strict order
    double makespan_s = 0;                                      ///< by the cost model
    double lower_bound_s = 0;
    std::vector<double> load_s;  ///< [stage], work per group
    int critical_stage = 0;      ///< the one with the largest load per group
    /// A window was too small for the micro-batches of this step: they were made smaller, or wavefront used
    /// the plan of lpt (policies.hpp).
    bool window_limited = false;
    bool operator==(const StepPlan&) const = default;
};

std::vector<std::int64_t> encode(const StepPlan& plan);
/// Throws Error(broken_invariant) if the words do not encode a plan.
StepPlan decode(std::span<const std::int64_t> words);

}  // namespace maestro::schedule
