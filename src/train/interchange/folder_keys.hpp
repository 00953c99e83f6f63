// What a deck takes from the folder of a published model.
#pragma once

#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "families/family.hpp"

namespace maestro::train {

/// Returns the keys of [model.NAME] that weights/config.json determines for a model of `kind`, or nothing
/// where there is no such file: then `weights` names something else. Collective; rank 0 reads.
/// Error(input_missing, bad_data, io_error).
std::optional<families::ModelKeys> folder_keys(const comm::Communicator& world, const std::string& weights,
                                               const std::string& kind);

}  // namespace maestro::train
