// What is the same for all plans of a deck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "plan/choices.hpp"
#include "schedule/execution/simulate.hpp"
#include "schedule/policies/wavefront.hpp"
#include "workload/estimate.hpp"
#include "workload/probes.hpp"
#include "workload/rank_device.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::plan {

/// The time or memory of what does not exist.
inline constexpr double kNone = std::numeric_limits<double>::infinity();

/// What is the same for all plans of a deck. The caller keeps everything alive.
struct Subject {
    const workload::Scenario& scenario;  ///< of the deck, on its cluster
    const workload::SampleTable& table;
    workload::Probes& probes;
    workload::RankDevice device;
    workload::PlanOptions options;
    workload::Estimates& estimates;                ///< of the scenario's cluster
    std::vector<std::vector<std::int64_t>> steps;  ///< the samples of each step that is simulated
    schedule::SearchEffort effort;                 ///< of the wavefront
    schedule::Dispatch dispatch = schedule::Dispatch::planned;
    IsFixed is_fixed;
    /// Micro-batches take the times that they have as their items go together (workload/mixing.hpp), as
    /// `maestro simulate` has them. No bound holds for these.
    bool mixed = false;

    /// Returns the same with other estimates, for scenarios on another cluster.
    Subject with(workload::Estimates& others) const {
        return {.scenario = scenario,
                .table = table,
                .probes = probes,
                .device = device,
                .options = options,
                .estimates = others,
                .steps = steps,
                .effort = effort,
                .dispatch = dispatch,
                .is_fixed = is_fixed,
                .mixed = mixed};
    }
    /// Returns the estimate of the k-th step of a scenario.
    workload::StepEstimate estimate(const workload::Scenario& of, std::size_t k) const {
        return estimates.of(of, device, options, steps[k]);
    }
    /// Returns the same with memory that is planned already: that of memory().
    workload::StepEstimate estimate(const workload::Scenario& of, workload::MemoryPlan memory,
                                    std::size_t k) const {
        return estimates.of(of, std::move(memory), steps[k]);
    }
    workload::MemoryPlan memory(const workload::Scenario& of) const {
        return estimates.memory_of(of, device, options);
    }
};

/// The most bytes that a rank may need: CPU ranks of a node share its memory.
inline double most_memory(const workload::RankDevice& device) {
    return device.gpu ? device.memory : std::max(device.ranks_per_node, 1) * device.memory;
}

}  // namespace maestro::plan
