// What single samples do not tell: ranks of context parallelism keep short items whole and cut long ones, and
// which of these a micro-batch does depends on how its items go together.
#pragma once

#include <array>

#include "parallel/mesh.hpp"
#include "schedule/problem/problem.hpp"
#include "schedule/problem/step_plan.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// Returns the links of a stage where its ranks are laid on nodes as well as they can be.
parallel::MeshLinks best_links(const Scenario& scenario, int stage);

/// Returns how many times as long the forwards and the backwards of a section take as the costs of their
/// samples tell: the mean over some micro-batches of the table, which the model's code runs. It is that of
/// the whole section without recomputation on the best links, so that it is the same for all stages of any
/// pipeline. 1 where no ranks share sequences, and without a cluster.
std::array<double, 2> mixing_factors(const Scenario& scenario, int section, const SampleTable& table,
                                     Probes& probes);

/// Returns the problem with the times that the micro-batches of a plan take as their items go together, where
/// ranks of an encoder share items: those that a run of the plan would have. The estimates by which it was
/// planned do not know of them. The scenario must be on a cluster.
schedule::Problem with_mixed_batches(schedule::Problem problem, const schedule::StepPlan& plan,
                                     const Scenario& scenario, const SampleTable& table, Probes& probes);

}  // namespace maestro::workload
