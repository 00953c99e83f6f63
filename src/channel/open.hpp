// All channels of a run. Here and nowhere else is chosen how the rows of an edge travel.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "channel/channel.hpp"
#include "comm/communicator.hpp"

namespace maestro::channel {

enum class Means {
    pointer,   ///< producer and consumer are one rank
    window,    ///< memory that the ranks of a node share; one-sided, a put is a copy
    messages,  ///< any nodes
};

struct Choice {
    Means means;
    std::string reason;  ///< "all its ranks are on node-a"
};

/// What the deck wants (run.transport): a means for all edges between ranks, or the fitting one for each.
enum class Wanted { automatic, window, messages };

/// Pure; the same on every rank. `host_of[rank]`: node of each rank of the world. Throws Error(bad_deck,
/// all_ranks) where windows are wanted for an edge that leaves a node.
Choice choose(const ChannelSpec& spec, std::span<const std::string> host_of, Wanted wanted);

struct OpenChannels {
    std::vector<std::unique_ptr<Channel>> channels;  ///< by spec; null where this rank takes no part
    std::vector<std::string> description;            ///< a line for each edge
};

/// Collective over `world`, which must outlive the channels. Refuses what does not fit into a node's shared
/// memory (Error(bad_deck, all_ranks), naming edges, sizes and what to change), then makes the channels.
OpenChannels open_channels(const comm::Communicator& world, std::span<const ChannelSpec> specs,
                           Wanted wanted = Wanted::automatic);

}  // namespace maestro::channel
