// On which device this rank trains or evaluates.
#pragma once

#include "backend/device.hpp"
#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "config/deck.hpp"

namespace maestro::train {

/// Collective over `world`. Error(bad_deck, all_ranks) where the deck wants what some rank does not have.
backend::Device choose_device(const comm::Communicator& world, const comm::Topology& topology,
                              const config::Deck& deck);

}  // namespace maestro::train
