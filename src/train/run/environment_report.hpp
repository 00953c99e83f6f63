// What a run says of itself first: versions, ranks, cores.
#pragma once

#include <string>

#include "train/run/run_context.hpp"

namespace maestro::train {

/// Collective. Lines for the log, on every rank the same.
std::string environment_report(const RunContext& context, const std::string& backend);

}  // namespace maestro::train
