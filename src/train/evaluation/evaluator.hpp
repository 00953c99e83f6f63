// maestro evaluate: loss and exact-match rate on held-out samples, on any number of ranks.
#pragma once

#include "config/command_line.hpp"
#include "train/setup/run_context.hpp"

namespace maestro::train {

/// Collective over the world. On as many ranks as the deck asks for, the sections run in the deck's layouts,
/// as in a training step. On any other number every rank holds all sections whole and evaluates its share of
/// the samples. Both run the forward tasks of step plans, in memory that was planned and checked: an
/// Error(device_memory) says on how many ranks the evaluation fits. Rank 0 prints a JSON object as the last
/// line of stdout.
void run_evaluation(RunContext& context, const config::CommandLine& line);

}  // namespace maestro::train
