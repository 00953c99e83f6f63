// The environment of a run, for its log: versions, ranks, cores.
#pragma once

#include <string>

#include "train/setup/run_context.hpp"

namespace maestro::train {

/// Collective. Returns lines for the log, the same on every rank.
std::string environment_report(const RunContext& context, const std::string& backend);

}  // namespace maestro::train
