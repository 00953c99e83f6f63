// What may fail on one rank alone becomes an error of all: the others do not wait for a rank that has left.
#pragma once

#include <functional>

#include "comm/communicator.hpp"

namespace maestro::comm {

/// Collective over `world`: every rank runs `action`, which must not communicate. If it throws on any rank,
/// all throw the error of the first such rank, with Scope::all_ranks.
void agree(const Communicator& world, const std::function<void()>& action);

}  // namespace maestro::comm
