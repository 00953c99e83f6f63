// What a channel needs from the machine: memory that peers write into, and a few operations on it. How bytes
// travel is decided in this folder alone: by pointer within a rank, by MPI windows within a node, by messages
// between nodes, late over an emulated link; between a GPU's memory and the host's by copies beside the
// kernels; between the memories of two GPUs by a CUDA-aware MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "comm/communicator.hpp"

namespace maestro::transport {

/// The ends of an edge.
enum class End { producer, consumer };

/// The backends that write and read a rank's rows at either end; null for an end that the rank does not have,
/// and for rows in host memory. If there are two, they use the same GPU but may have separate streams.
struct Backends {
    backend::Backend* producer = nullptr;
    backend::Backend* consumer = nullptr;
    backend::Backend* at(End end) const { return end == End::producer ? producer : consumer; }
    backend::Backend* any() const { return producer ? producer : consumer; }
};

/// Owns this rank's exposed memory, which peers write into (zeroed at the start). Peers are ranks of the
/// edge's communicator; a rank may be its own peer. Used by one thread. No call waits for a peer.
///
/// "Operations" are kernels or host code that read and write rows. On a GPU they are asynchronous: those
/// issued before a call may still run after it, and the functions below that mention them order copies and
/// operations on the device without making the host wait. Transports for rows in host memory leave these
/// functions empty.
class Transport {
public:
    virtual ~Transport() = default;
    virtual std::byte* memory() = 0;  ///< this rank's exposed memory, in host memory, 64-byte aligned
    /// The end of the edge that the following calls belong to, and whose operations they mean.
    virtual void set_end([[maybe_unused]] End end) {}
    /// Copies bytes to offset `offset` of `peer`'s memory. `source` must not change before flush(). It is in
    /// the memory that operations use: on a GPU in the GPU's.
    virtual void put(int peer, std::size_t offset, const void* source, std::size_t bytes) = 0;
    /// Sets a flag in `peer`'s memory, which the peer sees only after everything that was put to it before.
    virtual void signal(int peer, std::size_t offset, std::uint64_t flag) = 0;
    /// Starts to send what was put and signalled to `peer`. The host may then reuse the sources; what
    /// operations of a GPU have written is sent after submit().
    virtual void flush(int peer) = 0;
    /// Called after flush() for all peers of one batch. The batch is sent once the operations issued so far
    /// are done. `reuse`: operations issued later may overwrite the sources.
    virtual void submit([[maybe_unused]] bool reuse) {}
    /// Reads a flag of this rank's memory. What the peer put before it is visible afterwards.
    virtual std::uint64_t load(std::size_t offset) = 0;
    /// Returns which of `count` flags, one behind the other, has this value; -1: none. As load().
    virtual int find(std::size_t offset, int count, std::uint64_t flag) {
        for (int place = 0; place < count; ++place)
            if (load(offset + sizeof flag * static_cast<std::size_t>(place)) == flag) return place;
        return -1;
    }

    /// Operations issued later run after the rows have arrived that a flag, seen by load(), announces. Needed
    /// for rows that copy_to_device() does not copy.
    virtual void wait_on_device([[maybe_unused]] std::size_t offset) {}

    // Rows as operations see them: in memory(), or in a copy of it on the device.
    /// Operations issued later find zeros here. To be called before peers can put anything there.
    virtual void zero(std::size_t offset, std::size_t bytes) { std::memset(memory() + offset, 0, bytes); }
    /// Copies rows that have been announced to the device. No peer writes there again before this rank has
    /// acknowledged them.
    virtual void copy_to_device([[maybe_unused]] std::size_t offset, [[maybe_unused]] std::size_t bytes) {}
    /// The address at which operations issued later find these rows, and may write until they are
    /// acknowledged.
    virtual std::byte* rows_at(std::size_t offset) { return memory() + offset; }
    /// A peer's memory() in this process's address space; null if it is not reachable.
    virtual std::byte* peer_memory([[maybe_unused]] int peer) { return nullptr; }
};

/// A passive-target MPI window over `edge`, whose ranks share a node: there a put is a copy. Between nodes a
/// flush would wait until the target enters MPI. Collective; `bytes` may differ by rank. With `reaches` each
/// rank can address the memory of the others. If MPI offers no window to one of the ranks, all throw that
/// rank's Error, with Scope::all_ranks.
std::unique_ptr<Transport> make_mpi_window(comm::Communicator edge, std::size_t bytes, bool reaches = false);
/// Two-sided messages over `edge`, between any nodes: a flush copies what was put and sends it as one
/// message, and a thread (comm::Progress) receives while this rank computes. Memory of finished messages is
/// kept for reuse while all messages together take at most `message_bytes`. Collective.
std::unique_ptr<Transport> make_messages(comm::Communicator edge, std::size_t bytes,
                                         std::size_t message_bytes);
/// For an edge whose ends are both this rank; its only peer is 0.
std::unique_ptr<Transport> make_local(std::size_t bytes);

/// An emulated link. What `inner` delivers becomes visible `latency_s` after it was put, and `byte_s` later
/// for each byte; messages to a peer queue behind each other, and what a rank sends to itself is not delayed.
/// The delivery time of the flag at `offset`, from which it is visible, is sent along with it to
/// `delivery_times + offset`. The memory has the same layout on all ranks, and the ranks share a clock.
struct LinkDelay {
    double latency_s = 0, byte_s = 0;
    std::size_t delivery_times = 0;  ///< their offset in the memory
    int self = 0;                    ///< this rank among the peers
};
std::unique_ptr<Transport> make_delayed(std::unique_ptr<Transport> inner, LinkDelay delay);

/// An edge seen from a rank with a GPU. The waiter and the backends must outlive the transport.
struct GpuEnd {
    Backends backends;  ///< of at least one end
    comm::Waiter& waiter;
    std::string edge;                     ///< for error messages
    std::size_t flag_bytes = 0;           ///< at the start of the memory, which the device does not see
    std::size_t bytes = 0;                ///< of the memory
    std::vector<std::size_t> peers = {};  ///< bytes of each peer's memory
    std::size_t staging = 0;  ///< bytes of pinned memory for rows to peers that a copy cannot reach
};
/// Between a GPU's memory and `host`: copies on dedicated streams, ordered by events. Rows are copied from
/// the device straight into the memory of peers that `host` reaches and CUDA can pin, and through pinned
/// memory to others; the flags follow once the copies are done, sent by the thread that drives Progress.
/// Received rows are copied to a second memory of the same layout on the device. `refused`: the reason why
/// CUDA does not pin the memory, if it does not.
std::unique_ptr<Transport> make_gpu_transport(std::unique_ptr<Transport> host, const GpuEnd& end,
                                              std::string& refused);
/// An edge whose ranks all have GPUs, seen from one of them. The backends must outlive the transport.
struct DirectEnd {
    Backends backends;
    std::string edge;                 ///< for error messages
    std::size_t flag_bytes = 0;       ///< at the start of the memory, in host memory
    std::size_t bytes = 0;            ///< of the memory; the rows are on the device
    std::vector<bool> sends = {};     ///< whether rows are sent to each peer
    std::vector<bool> receives = {};  ///< whether rows are received from each
    std::size_t staging = 0;  ///< bytes on the device for rows that may be overwritten before they are sent
};
/// Rows travel from device to device, and flags in messages over `edge`, between any nodes. memory() holds
/// the flags alone. Collective. Error(peer_lost) if a rank does not call it.
std::unique_ptr<Transport> make_direct_transport(comm::Communicator edge, DirectEnd end);
/// For an edge whose ends are both this rank, on its GPU. `bytes` of memory, of which the first `flag_bytes`
/// are in host memory. Operations of one end wait on the device for flags of the other, and the host does not
/// wait.
std::unique_ptr<Transport> make_gpu_local(const Backends& backends, std::size_t flag_bytes,
                                          std::size_t bytes);

}  // namespace maestro::transport
