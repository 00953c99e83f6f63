// The ways in which a group's tensors can travel. Which of them is taken, make_group() alone decides.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "collective/group.hpp"

namespace maestro::collective {

inline constexpr int kMessageTag = 3;
inline constexpr std::size_t kLargestPiece = std::size_t{1} << 30;  ///< bytes; counts of MPI are int
inline constexpr std::size_t kStagedPiece = std::size_t{4} << 20;

/// Of the host's memory: messages of MPI, cut into pieces of so many bytes, straight from where a tensor lies
/// to where it belongs.
std::unique_ptr<Group> make_message_group(comm::Communicator members, std::size_t piece, std::string way);
/// Of a GPU's: the same messages in pieces of kStagedPiece, through pinned memory of the host.
std::unique_ptr<Group> make_staged_group(comm::Communicator members, backend::Backend& backend,
                                         std::string way);
/// Of GPUs that no two of the ranks share. Collective. Error(peer_lost) where a rank does not come.
std::unique_ptr<Group> make_nccl_group(comm::Communicator members, backend::Backend& backend,
                                       std::string way);
/// Bytes of a GPU that NCCL may take for buffers to one other rank of a group: an estimate, 0 in a program
/// that was built without it.
std::size_t nccl_peer_memory();
/// Other ranks of a group that count so: those of a node, and one for all behind the network, which share
/// NCCL's buffers.
inline constexpr int kNcclPeers = 8;
/// "NCCL 2.28.9", or nothing in a program that was built without it.
std::string nccl_version();

/// How ranks have GPUs, and in words: "2 ranks share 1 GPU".
struct Placing {
    enum class Kind {
        none,  ///< no rank has one
        some,  ///< some have
        shared,
        apart,  ///< each has its own, but this program has no NCCL
        nccl,   ///< each has its own
    };
    Kind kind = Kind::none;
    std::string reason;
};
/// Pure. `gpus`: Backend::gpu() of each rank.
Placing placing_of(std::span<const std::string> gpus);

}  // namespace maestro::collective
