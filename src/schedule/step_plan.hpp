// Who runs what in one step, and in which order: made on the coordinator, sent to every rank as integers.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace maestro::schedule {

enum class Phase : int { forward = 0, backward = 1 };

struct MicroBatch {
    std::vector<std::int64_t> samples;  ///< ids
    bool operator==(const MicroBatch&) const = default;
};

struct Task {
    int section = 0;
    int micro_batch = 0;  ///< of the lane's replica of that section
    Phase phase = Phase::forward;
    /// Of a forward of a section with a loss, for lanes that start what is ready, by the cost model: the
    /// seconds that it takes with its backward, and its float: how much later they may end without making
    /// the step longer, but for what its own lane does next.
    double takes_s = 0;
    double float_s = std::numeric_limits<double>::infinity();
    bool operator==(const Task&) const = default;
};

struct StepPlan {
    std::int64_t step = 0;
    std::vector<std::vector<std::vector<MicroBatch>>> batches;  ///< [section][replica][micro-batch]
    std::vector<std::vector<Task>> agendas;                     ///< [lane], in strict order
    double makespan_s = 0;                                      ///< by the cost model
    double lower_bound_s = 0;
    std::vector<double> load_s;  ///< [section] work per replica; over lower_bound_s its share of the bound
    int critical_section = 0;    ///< the one with the largest load per replica
    /// A window was too small for the micro-batches of this step: they were made smaller, or wavefront fell
    /// back on lpt (policies.hpp).
    bool squeezed = false;
    bool operator==(const StepPlan&) const = default;
};

std::vector<std::int64_t> encode(const StepPlan& plan);
/// Throws Error(broken_invariant) for words that are no plan.
StepPlan decode(std::span<const std::int64_t> words);

}  // namespace maestro::schedule
