// Orders of a pipeline's micro-batches in which those with work upstream have fixed places.
#pragma once

#include <vector>

#include "schedule/policies/construct.hpp"

namespace maestro::schedule {

/// Number of placements().
inline constexpr int kPlacements = 3;
/// Returns orders of all items in which each stands at its place. Of m items n have work upstream, where each
/// takes a seconds forward and g backward; the pipeline takes c for each. They can stand at the places
/// x_1 < ... < x_n without a delay if i a <= x_i c for the inputs and (n - i + 1) g <= (m - 1 - x_i) c for
/// the gradients; the number of stages does not matter. In the first order they stand as early as their
/// inputs allow, in the second as late as their gradients allow, in the third between. Text fills the other
/// places, short items at both ends. `preferred`: the order of those with work upstream; group_of: [item].
std::vector<std::vector<int>> placements(const Instance& instance, const MicroBatches& items,
                                         const Work& work, const std::vector<int>& preferred,
                                         const std::vector<int>& group_of);

/// Returns the items of the lowest values first and last, those of the highest in the middle.
std::vector<int> rising_and_falling(std::vector<int> items, const std::vector<double>& value);

}  // namespace maestro::schedule
