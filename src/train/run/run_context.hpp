// What comes before any section is built: the deck with its graph, where this rank stands.
#pragma once

#include "backend/device.hpp"
#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "comm/watchdog.hpp"
#include "config/deck.hpp"

namespace maestro::train {

struct RunContext {
    const comm::Communicator& world;
    comm::Watchdog& watchdog;
    Pulse& pulse;  ///< of this rank's work on files
    comm::Topology topology;
    backend::Device device = {};
    config::Deck deck;
};

}  // namespace maestro::train
