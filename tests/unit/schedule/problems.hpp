// Random problems for the scheduler's tests.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/problem.hpp"

namespace maestro::schedule_test {

/// One to three upstream sections of a loss section, perhaps in a chain, perhaps all on the same lanes.
schedule::Problem random_problem(std::uint64_t seed);
/// Two lanes: an encoder with `load` times the language section's work, `share` of the samples with pictures.
schedule::Problem two_lanes(std::uint64_t seed, double load, double share);
/// As random_problem, with what makes it hard: windows down to one micro-batch, links that take time, times
/// from outside where a zero is no task, a section that feeds two levels, a second section with a loss.
schedule::Problem hard_problem(std::uint64_t seed);

/// Cuts every section of `single`, whose sections have one stage each, into as many stages as `stages` says.
/// The costs of a section are divided among its stages.
schedule::Problem in_stages(const schedule::Problem& single, const std::vector<int>& stages);

}  // namespace maestro::schedule_test
