// `maestro import`: a deck that fine-tunes the model of a folder.
#pragma once

#include "comm/communicator.hpp"
#include "config/command_line.hpp"

namespace maestro::train {

/// Writes the deck to line.out, or prints it. Rank 0 writes. Collective. Error(input_missing, bad_data,
/// cannot_create).
void run_import(const comm::Communicator& world, const config::CommandLine& line);

}  // namespace maestro::train
