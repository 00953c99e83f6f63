// What a step of a scenario takes and needs: the account that simulations, dry runs and the planner share.
// Pure functions without messages, files or log lines, so that a planner may ask them of many layouts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
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
