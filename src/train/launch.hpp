// What comes before any section is built: the deck, its graph, where this rank stands.
#pragma once

#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "comm/watchdog.hpp"
#include "config/deck.hpp"
#include "graph/section_graph.hpp"

namespace maestro::train {

struct Launch {
    const comm::Communicator& world;
    comm::Watchdog& watchdog;
    comm::Topology topology;
    config::Deck deck;
    graph::SectionGraph graph;
};

/// Does world rank `rank` hold a replica of the section?
inline bool holds(const graph::Section& section, int rank) {
    return rank >= section.first_rank && rank < section.first_rank + section.layout.ranks();
}

}  // namespace maestro::train
