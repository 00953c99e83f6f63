// The implementations of a process group. make_process_group() picks one of them by
// transport::choose_for_group().
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "collective/process_group.hpp"

namespace maestro::collective {

inline constexpr int kMessageTag = 3;
inline constexpr std::size_t kMaxMessage = std::size_t{1} << 30;  ///< bytes; a count is an int in MPI
/// Bytes of a segment that is copied through pinned memory: small enough that the copies and the messages of
/// several segments overlap and that few of them fill little memory.
inline constexpr std::size_t kMaxStagedMessage = std::size_t{4} << 20;

/// For tensors in host memory: MPI messages of at most `max_message` bytes, sent and received in place.
std::unique_ptr<ProcessGroup> make_mpi_group(comm::Communicator members, Nodes nodes, std::size_t max_message,
                                             std::string transport);
/// For tensors of a GPU: the same messages in segments of kMaxStagedMessage, through pinned memory of the
/// host.
std::unique_ptr<ProcessGroup> make_staged_group(comm::Communicator members, Nodes nodes,
                                                backend::Backend& backend, std::string transport);
/// For GPUs that no two of the ranks share. Collective. Throws Error(peer_lost) if a rank does not
/// call it.
std::unique_ptr<ProcessGroup> make_nccl_group(comm::Communicator members, Nodes nodes,
                                              backend::Backend& backend, Sums sums, std::string transport);

}  // namespace maestro::collective
