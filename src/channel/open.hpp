// All channels of a run. Here and nowhere else is chosen how the rows of an edge travel.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "channel/channel.hpp"
#include "comm/communicator.hpp"

namespace maestro::channel {

enum class Means {
    pointer,   ///< producer and consumer are one rank
    window,    ///< memory that the ranks of a node share; one-sided, a put is a copy
    messages,  ///< any nodes
    nccl,      ///< from GPU to GPU, any nodes
    gpu_mpi,   ///< the same by an MPI that reaches GPUs
};

struct Choice {
    Means means;
    std::string reason;  ///< "all its ranks are on node-a"
};

/// What the deck wants (run.transport): a means for all edges between ranks, or the fitting one for each.
enum class Wanted { automatic, window, messages };

/// Pure; the same on every rank. `host_of[rank]`: node of each rank of the world; `gpu_of[rank]`: its
/// Backend::gpu(); `reaches`: MPI reaches GPUs (comm::reaches_gpus()). Throws Error(bad_deck, all_ranks)
/// where windows are wanted for an edge that leaves a node.
Choice choose(const ChannelSpec& spec, std::span<const std::string> host_of,
              std::span<const std::string> gpu_of, Wanted wanted, bool reaches = false);

/// How rows of GPUs pass between their memory and what the means brings, and why; nothing where no rank of
/// the edge has one. Pure. `on_gpu[rank]` of the world; `refused`: why CUDA does not pin the means' memory.
std::string way_of_gpus(const ChannelSpec& spec, Means means, const std::vector<bool>& on_gpu,
                        const std::string& refused);

struct OpenChannels {
    std::vector<std::unique_ptr<Channel>> channels;  ///< by spec; null where this rank takes no part
    std::vector<std::string> description;            ///< a line for each edge
};

/// Collective over `world`, which must outlive the channels. Refuses what does not fit into a node's shared
/// memory (Error(bad_deck, all_ranks), naming edges, sizes and what to change), then makes the channels. Rows
/// lie where operations of this rank's backends, by spec, find them, which must outlive the channels; without
/// any in the host's memory.
OpenChannels open_channels(const comm::Communicator& world, std::span<const ChannelSpec> specs,
                           Wanted wanted = Wanted::automatic, std::span<const Backends> backends = {});

}  // namespace maestro::channel
