// maestro train: the loop over the steps, from a deck to checkpoints and metrics.
#pragma once

#include "base/error.hpp"
#include "config/command_line.hpp"
#include "train/setup/interruption.hpp"
#include "train/setup/run_context.hpp"
#include "train/setup/run_report.hpp"

namespace maestro::train {

/// Collective. Returns done or stopped_early, and throws Error in all other cases.
ExitCode run_training(RunContext& context, const config::CommandLine& line, Interruption& interruption,
                      RunReport& report);

}  // namespace maestro::train
