// What a step of a scenario takes and needs: the account that simulations, dry runs and the planner share.
// Pure functions without messages, files or log lines, so that a planner may ask them of many layouts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/section_graph.hpp"
#include "schedule/execution/simulate.hpp"
#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"
#include "workload/memory.hpp"
#include "workload/probes.hpp"
#include "workload/rank_device.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"
#include "workload/step_end.hpp"

namespace maestro::workload {

/// A step before its tasks are ordered.
struct StepEstimate {
    schedule::Problem problem;  ///< with the samples of the step
    double tokens = 0;          ///< of the sections with a loss, over the step; 0: unknown
    MemoryPlan memory;          ///< empty without a cluster, like the next three
    std::vector<StepEnd> ends;  ///< by stage
    double latency_s = 0;       ///< of a message
    std::string shortage;       ///< of memory; empty: everything fits, or it is not known
};

/// Returns the estimate of a step with the samples `ids` of the table, on the scenario's cluster, whose ranks
/// are `device`s. Windows of 0 are chosen from its memory, as `train` does. Throws Error(bad_deck) where the
/// samples or run.transport do not fit the layout.
StepEstimate estimate(const Scenario& scenario, const SampleTable& table, Probes& probes,
                      const RankDevice& device, const PlanOptions& options,
                      std::span<const std::int64_t> ids);

/// Estimates of many scenarios of one deck, in which a section's part is computed once for all scenarios that
/// agree on it: it depends on the section's own layout, micro-batch and recomputation and on where its ranks
/// are on their nodes. Not thread-safe.
class Estimates {
public:
    /// Both must outlive it.
    Estimates(const SampleTable& table, Probes& probes) : table_(table), probes_(probes) {}
    /// Returns estimate() of the scenario. All scenarios are with_sections() of one, on the same cluster, and
    /// differ besides in Tuning::recompute and recompute_layers alone.
    StepEstimate of(const Scenario& scenario, const RankDevice& device, const PlanOptions& options,
                    std::span<const std::int64_t> ids);
    /// Returns the memory alone, and the same with a memory that was planned before.
    MemoryPlan memory_of(const Scenario& scenario, const RankDevice& device, const PlanOptions& options);
    StepEstimate of(const Scenario& scenario, MemoryPlan memory, std::span<const std::int64_t> ids);

private:
    struct Key {
        int index = 0;           ///< of the section
        graph::Section section;  ///< with its first rank on its node, without what its places follow from
        std::vector<Range> layers;
        Recompute recompute = Recompute::none;
        int recompute_layers = 0;
        /// What else the part depends on: a step's samples, or for which device and purpose memory is
        /// planned.
        std::vector<std::int64_t> ids = {};
        backend::Traits traits = {};
        bool train = true;
        bool operator==(const Key&) const = default;
    };
    struct Hash {
        std::size_t operator()(const Key& key) const;
    };
    /// A section's part of a step.
    struct Part {
        /// By sample, those of all stages of the section one after another, without transfers.
        std::vector<schedule::TaskCost> costs;
        std::vector<schedule::TaskCost> lacking;  ///< by stage, see CostModel::lacking()
        std::vector<StepEnd> ends;                ///< likewise
    };
    static Key key_of(const Scenario& scenario, int section);
    /// Valid until the next call.
    const Part& part_of(const Scenario& scenario, int section, std::span<const std::int64_t> ids);
    const std::vector<StageMemory>& stages_of(const Scenario& scenario, int section, backend::Traits traits,
                                              bool train);

    const SampleTable& table_;
    Probes& probes_;
    std::unordered_map<Key, Part, Hash> parts_;
    std::unordered_map<Key, std::vector<StageMemory>, Hash> stages_;
    std::size_t costs_ = 0;  ///< in all parts
};

/// Adds the step's samples of the scenario to a problem, with `costs` by their ids, and returns their tokens.
double add_samples(schedule::Problem& problem, const SampleTable& table, std::span<const std::int64_t> ids,
                   std::vector<schedule::SampleCost> costs);

/// Returns the seconds from the first task of a step to its last update of weights, if its tasks run as in
/// `timeline`. `ends` and `latency_s`: see StepEstimate.
double step_seconds(const schedule::Timeline& timeline, const graph::SectionGraph& graph,
                    const std::vector<StepEnd>& ends, double latency_s);
/// Returns the same in a running training, in which tasks wait for the weights that the step before them
/// gathers. `timeline` is that of `plan` without these waits.
double running_step_seconds(const schedule::Problem& problem, const schedule::StepPlan& plan,
                            schedule::Timeline timeline, const graph::SectionGraph& graph,
                            const std::vector<StepEnd>& ends, double latency_s, schedule::Dispatch dispatch);

}  // namespace maestro::workload
