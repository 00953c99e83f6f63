// Which layers of its model each stage of a section has.
#pragma once

#include <span>
#include <vector>

#include "base/shard.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// Cuts the list `costs` into `parts` consecutive parts, each with at least one element, the first with at
/// least `first`, and returns how many elements each has: so that the largest sum is as small as possible
/// and, among such cuts, the sum of squares is. Exact, by dynamic programming (the linear partition problem:
/// Skiena, "The Algorithm Design Manual"). No more parts than costs.
std::vector<int> linear_partition(std::span<const double> costs, int parts, int first = 1);

/// Returns the layers of each stage of a section: those that the deck lists, or a cut that balances the
/// floating-point operations of the stages, the embedding and the head included, for samples of `tokens`
/// tokens. Empty ranges for a section without a model. The graph is complete; `Scenario::layers` is not used.
std::vector<Range> layers_of_stages(const Scenario& scenario, int section, std::int64_t tokens);

/// Balances the stages of the scenario's sections again, by the lengths that its samples have: a head costs
/// as much as more layers where samples are short.
void balance_stages(Scenario& scenario, const SampleTable& table);

}  // namespace maestro::workload
