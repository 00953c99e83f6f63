// maestro evaluate: loss and exact-match rate on held-out samples, on any number of ranks.
#pragma once

#include "config/command_line.hpp"
#include "train/run/run_context.hpp"

namespace maestro::train {

/// Collective; ignores placement and layout: every rank holds all sections and takes its share of the
/// samples. Rank 0 prints a JSON object as the last line of stdout.
void run_evaluation(RunContext& context, const config::CommandLine& line);

}  // namespace maestro::train
