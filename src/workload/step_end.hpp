// What keeps the weights of a stage's replicas equal costs in a step: summing gradients, the optimizer, and
// gathering the new weights. The same operations and collectives run on the meta backend as in training.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "model/module.hpp"
#include "schedule/problem/problem.hpp"

namespace maestro::workload {

/// A parameter group in a step, on one rank.
struct GroupTimes {
    double final_at = 1;   ///< the part of a backward task after which its gradients are final
    double needed_at = 0;  ///< the part of a forward task before which its weights are needed
    double sum_s = 0;      ///< its gradients summed
    /// Of what is computed while the next group is summed: the norm of the rank's shard, the rest of the
    /// gradient set to zero.
    double after_sum_s = 0;
    double update_s = 0;  ///< the rank's shard updated
    double gather_s = 0;  ///< all weights gathered
    bool tied = false;    ///< has copies in another stage, with which the gradients are summed first
};
using StepEnd = std::vector<GroupTimes>;  ///< by trainable group, in the order of the store

class Probes;
class SampleTable;
struct Scenario;

/// Runs the end of a step on the meta backend, on this rank of the mesh. Empty where nothing is trained. When
/// the tasks of a step finish and need the groups is left to place_groups().
StepEnd measure_step_end(const model::ModelSpec& spec, const model::Role& role, parallel::Mesh mesh,
                         const backend::DeviceRates& rates);

/// Returns the end of a step in every stage, on the scenario's cluster.
std::vector<StepEnd> step_ends(const Scenario& scenario, Probes& probes);
StepEnd step_end_of(const Scenario& scenario, int stage, Probes& probes);

/// Tells the planner how long sums and gathers of each stage take.
void add_syncs(const std::vector<StepEnd>& ends, schedule::Problem& problem);
/// Sets final_at and needed_at of a stage, as in the tasks of a sample of medium length among `samples`.
void place_groups(StepEnd& end, const Scenario& scenario, int stage, const SampleTable& table,
                  std::span<const std::int64_t> samples, Probes& probes);

}  // namespace maestro::workload
