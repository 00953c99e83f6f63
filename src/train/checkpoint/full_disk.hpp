// A full disk as a value that all ranks know, for work that can wait until there is room.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.hpp"

namespace maestro::train {

/// Collective over `world`, like comm::agree(). Where a rank meets storage::NoRoom, and none another error,
/// returns its fault, the same on all ranks; empty: `action` was done everywhere.
std::string agree_unless_full(const comm::Communicator& world, const std::function<void()>& action);

}  // namespace maestro::train
