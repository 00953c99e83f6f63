// `maestro export`: a section's weights as the folder of a published model.
#pragma once

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "config/command_line.hpp"
#include "train/setup/interruption.hpp"

namespace maestro::train {

/// Writes the folder line.to with the weights of line.section in the checkpoint line.checkpoint. Each rank
/// writes a part. Collective. Error(input_missing, bad_data, cannot_create, io_error).
void run_export(const comm::Communicator& world, const config::CommandLine& line, Pulse& pulse,
                Interruption& interruption);

}  // namespace maestro::train
