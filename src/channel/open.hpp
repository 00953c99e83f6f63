// Makes all channels of a run, and chooses their transports.
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

using transport::TransportRequest;

/// The transport of an edge; the same on every rank. `host_of[rank]`: node of each rank of the world;
/// `gpu_of[rank]`: its Backend::gpu(). Throws as transport::choose_for_edge().
transport::Choice choose(const ChannelSpec& spec, std::span<const std::string> host_of,
                         std::span<const std::string> gpu_of, TransportRequest request,
                         bool mpi_reaches_gpus = false);

/// Describes for the log how rows get from a GPU's memory to the transport, and why; "" if no rank of the
/// edge has a GPU. Pure. `on_gpu[rank]` of the world; `refused`: CUDA's reason for not pinning the
/// transport's memory.
std::string describe_gpu_copies(const ChannelSpec& spec, transport::Method method,
                                const std::vector<bool>& on_gpu, const std::string& refused);

/// Sets `by_messages` of the edges that open_channels() will join by messages, so that their memory can be
/// planned. For rows in the memory of hosts. Collective over `world`; if the edges name ranks that it does
/// not have, as in a dry run, they are assumed to be on one node.
void mark_messages(const comm::Communicator& world, std::span<ChannelSpec> specs, TransportRequest request);

struct OpenChannels {
    std::vector<std::unique_ptr<Channel>> channels;  ///< by spec; null if this rank is not on the edge
    std::vector<std::string> description;            ///< a line for each edge
};

/// Makes the channels. Collective over `world`, which must outlive them. Throws Error(bad_deck, all_ranks),
/// which names edges, sizes and what to change, if they do not fit into a node's shared memory. `backends`:
/// this rank's, by spec, which must outlive the channels; empty for rows in host memory.
OpenChannels open_channels(const comm::Communicator& world, std::span<const ChannelSpec> specs,
                           TransportRequest request = TransportRequest::automatic,
                           std::span<const transport::Backends> backends = {});

}  // namespace maestro::channel
