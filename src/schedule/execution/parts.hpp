// Which part of a lane has which samples of a micro-batch (problem.hpp).
#pragma once

#include <vector>

#include "schedule/execution/machine.hpp"

namespace maestro::schedule {

/// Which samples go to which part: by descending cost to the part with the least so far (LPT, Graham, 1969),
/// or in turn, in the order of the micro-batch.
enum class Sharing { by_cost, in_turn };

/// Sets Batches::parts of the sections whose lanes have several. No part gets more samples than its share of
/// a full micro-batch.
void assign_parts(const Instance& instance, Sharing sharing, std::vector<Batches>& batches);

}  // namespace maestro::schedule
