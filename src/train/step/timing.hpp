// The time that a rank spends in each stage, for the table at the end of log.txt.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace maestro::train {

/// Seconds of one rank in one stage.
struct SectionTimes {
    double compute = 0;  ///< forward and backward tasks
    double waiting = 0;  ///< for inputs, credits and gradients of tasks, and for the weights that they need
    double sending = 0;  ///< putting rows and gradients
    /// What tasks do not hide of the sums of gradients and gathers of weights, and the update between them:
    /// waiting for the sums after the last task, and for all weights where the run stops. Includes waiting
    /// for the slowest rank.
    double reducing = 0;
};

/// Collective. Returns on every rank a table with min, mean and max over the ranks of each of `sections`,
/// stages or sections, and the share of `wall_s`. `mine[s]` counts where `member[s]`.
std::string timing_table(const comm::Communicator& world, std::span<const std::string> sections,
                         std::span<const SectionTimes> mine, const std::vector<bool>& member, double wall_s);

}  // namespace maestro::train
