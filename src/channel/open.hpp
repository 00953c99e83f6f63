// Makes all channels of a run.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "channel/channel.hpp"
#include "comm/communicator.hpp"
#include "transport/choice.hpp"

namespace maestro::channel {

using transport::Request;

/// How the rows of an edge travel; the same on every rank. `host_of[rank]`: node of each rank of the world;
/// `gpu_of[rank]`: its Backend::gpu(). Throws as transport::choose_for_edge().
transport::Choice choose(const ChannelSpec& spec, std::span<const std::string> host_of,
                         std::span<const std::string> gpu_of, Request request, bool mpi_reaches_gpus = false);

/// How the rows of GPUs get from their memory to what the method carries, and why; "" where no rank of the
/// edge has a GPU. Pure. `on_gpu[rank]` of the world; `refused`: why CUDA does not pin the method's memory.
std::string describe_gpu_copies(const ChannelSpec& spec, transport::Method method,
                                const std::vector<bool>& on_gpu, const std::string& refused);

/// Sets `by_messages` of the edges that open_channels() will join by messages, so that their memory can be
/// planned. For rows in the memory of hosts. Collective over `world`; if the edges name ranks that it does
/// not have, as in a dry run, they are taken to be on one node.
void mark_messages(const comm::Communicator& world, std::span<ChannelSpec> specs, Request request);

struct OpenChannels {
    std::vector<std::unique_ptr<Channel>> channels;  ///< by spec; null where this rank takes no part
    std::vector<std::string> description;            ///< a line for each edge
};

/// Collective over `world`, which must outlive the channels. Refuses what does not fit into a node's shared
/// memory (Error(bad_deck, all_ranks), naming edges, sizes and what to change), then makes the channels. Rows
/// lie where operations of this rank's backends, by spec, find them, which must outlive the channels; without
/// any in the host's memory.
OpenChannels open_channels(const comm::Communicator& world, std::span<const ChannelSpec> specs,
                           Request request = Request::automatic,
                           std::span<const transport::Backends> backends = {});

}  // namespace maestro::channel
