// Chooses and opens the device that this rank trains or evaluates on.
#pragma once

#include <memory>

#include "backend/device.hpp"
#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "config/deck.hpp"
#include "train/setup/run_context.hpp"

namespace maestro::train {

/// Collective over `world`. In a build for GPUs what "auto" came to, and why, is logged. Error(bad_deck,
/// all_ranks) where the deck wants what some rank does not have.
backend::Device choose_device(const comm::Communicator& world, const comm::Topology& topology,
                              const config::Deck& deck);

/// Opens the context's device. Waits for a GPU have the same deadline as waits for ranks, and name the GPU.
std::unique_ptr<backend::Backend> open_device(const RunContext& context);

}  // namespace maestro::train
