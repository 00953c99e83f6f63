// How data travels between ranks. It is chosen here and nowhere else, by pure functions of where the ranks
// are and which GPUs they use, so that all ranks come to the same choice.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace maestro::transport {

enum class Method {
    pointer,          ///< producer and consumer are one rank: a pointer is passed
    shared_memory,    ///< a one-sided MPI window in memory that the ranks of a node share; a put is a copy
    messages,         ///< two-sided MPI between the hosts' memories
    staged_messages,  ///< the same for GPUs, through pinned memory of the host
    nccl,             ///< from GPU to GPU by NCCL; for groups alone
    gpu_mpi,          ///< from GPU to GPU by an MPI that can read and write the memory of GPUs
};
/// "shared memory", "messages", "NCCL 2.28.9", ...: for the log.
std::string describe(Method method);

struct Choice {
    Method method = Method::messages;
    std::string reason;  ///< "all its ranks are on node-a"
};

/// How the GPUs of a number of ranks are assigned, and the same in flags: "2 ranks share 1 GPU".
struct GpuPlacement {
    enum class Kind {
        none,               ///< no rank uses a GPU
        some,               ///< some ranks do
        shared,             ///< all do, and some share one
        exclusive_no_nccl,  ///< each rank has a GPU to itself, but this program was built without NCCL
        exclusive,          ///< each rank has a GPU to itself
    };
    Kind kind = Kind::none;
    std::string reason;
};
/// `gpus`: Backend::gpu() of each rank.
GpuPlacement gpu_placement(std::span<const std::string> gpus);

/// For the collectives of a process group whose ranks use these GPUs: messages, staged messages or NCCL.
Choice choose_for_group(std::span<const std::string> gpus);

/// What the deck asks for (run.transport): one method for all edges between ranks, or the best for each.
enum class TransportRequest { automatic, shared_memory, messages };

/// The ranks at both ends of an edge.
struct EdgeRanks {
    std::string edge;                ///< "vision-language"
    std::vector<std::string> hosts;  ///< of each rank
    std::vector<std::string> gpus;   ///< Backend::gpu() of each rank
    bool same_rank = false;          ///< producer and consumer of every replica are one and the same rank
    bool emulated = false;           ///< an emulated link delays what it carries, which takes the host
    bool mpi_reaches_gpus = false;   ///< comm::reaches_gpus() on every rank
};
/// Never NCCL: its kernels wait on the device for the other rank. Streams share hardware queues, in which
/// work of one stream waits behind that of another, so that a receive could hold up the very work on which
/// the other rank depends before it sends. Rows travel by copies and messages that wait for no other rank.
/// Throws Error(bad_deck, all_ranks) where shared memory is requested for an edge between nodes.
Choice choose_for_edge(const EdgeRanks& ranks, TransportRequest request);

/// "NCCL 2.28.9", or "" in a program that was built without it.
std::string nccl_version();
/// Bytes of a GPU's memory that NCCL may take for the buffers of one connection between two ranks of a group:
/// an estimate. 0 in a program that was built without NCCL.
std::size_t nccl_connection_bytes();
/// The same of a program that has NCCL. Sends and receives between two GPUs of a node open up to 32 channels
/// of 10 MiB to receive and 2 MiB to send: seen on H100s (github.com/NVIDIA/nccl/issues/1685), where
/// NCCL_MAX_P2P_NCHANNELS does not say less.
inline constexpr std::size_t kNcclConnectionBytes = 32 * (std::size_t{10 + 2} << 20);
/// Connections of a rank whose buffers are counted in the memory plan: seven other ranks of the node, and one
/// for all ranks on other nodes, since connections through a network share their buffers.
inline constexpr int kMaxNcclConnections = 8;

}  // namespace maestro::transport
