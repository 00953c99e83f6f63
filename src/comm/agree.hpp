// Turns an error of one rank into an error of all, so that no rank waits for one that has given up.
#pragma once

#include <functional>

#include "comm/communicator.hpp"

namespace maestro::comm {

/// Collective over `world`: every rank runs `action`. If it throws on any rank, all throw the error of the
/// first such rank, with Scope::all_ranks. `action` must not communicate, because a rank that throws would
/// leave the others waiting within it.
void agree(const Communicator& world, const std::function<void()>& action);

}  // namespace maestro::comm
