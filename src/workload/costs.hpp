// A simple cost model: the floating-point operations of each section, counted by its own code on the meta
// backend at a few lengths, as polynomials of degree two, over a nominal rate.
#pragma once

#include <string>
#include <vector>

#include "config/deck.hpp"
#include "schedule/problem.hpp"
#include "workload/sample_table.hpp"

namespace maestro::workload {

/// Sections, edges and ranks of the deck for the scheduler, without samples. `windows[s]` are resolved.
schedule::Problem problem_of(const config::Deck& deck, const std::vector<int>& windows);
/// One line of the log: the work per rank of each section over the samples, as a share of the largest.
std::string describe_load(const config::Deck& deck, const std::vector<schedule::SampleCost>& costs);
/// Of every sample of the table, by its id. Seconds at the nominal rate.
std::vector<schedule::SampleCost> sample_costs(const config::Deck& deck, std::int32_t marker,
                                               const SampleTable& table);

}  // namespace maestro::workload
