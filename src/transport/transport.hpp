// What a channel needs from the machine: memory that peers write into, and a few verbs. How bytes travel is
// decided here and nowhere else: by pointer within a rank, by windows within a node, by messages between
// nodes, late over an emulated link; between a GPU's memory and the host's by copies beside the computing,
// between the memories of two GPUs by NCCL, or by an MPI that reaches them.
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

/// What makes and reads a rank's rows at either end; null where it is not there, or where rows lie in the
/// host's memory. One GPU's where there are two, which may have streams of their own.
struct Backends {
    backend::Backend* producer = nullptr;
    backend::Backend* consumer = nullptr;
    backend::Backend* at(End end) const { return end == End::producer ? producer : consumer; }
    backend::Backend* any() const { return producer ? producer : consumer; }
};

/// Owns this rank's exposed memory (zeroed at the start). Peers are ranks of the edge's communicator; a rank
/// may be its own. Used by one thread. No call waits for a peer.
class Transport {
public:
    virtual ~Transport() = default;
    virtual std::byte* memory() = 0;  ///< this rank's exposed memory, 64-byte aligned, of the host
    /// For whom the calls that follow are: "operations" are those of this end of the rank.
    virtual void serve([[maybe_unused]] End end) {}
    /// Bytes for `peer`'s memory at byte `offset`; `source` stays untouched until push(). It is where
    /// operations find it: on a GPU in its memory.
    virtual void put(int peer, std::size_t offset, const void* source, std::size_t bytes) = 0;
    /// Sets a word of `peer`'s memory, seen there only after all that was put to that peer before.
    virtual void signal(int peer, std::size_t offset, std::uint64_t word) = 0;
    /// Sends what was put and signalled to `peer` so far on its way. The host may use the sources afterwards;
    /// what operations of a GPU wrote, leaves with depart().
    virtual void push(int peer) = 0;
    /// After the pushes of what belongs together. It leaves once the operations given so far are done, for
    /// which the host does not wait. `reuse`: operations given later may write over the sources.
    virtual void depart([[maybe_unused]] bool reuse) {}
    /// A word of the own memory that a peer signals; what that peer put before it is visible afterwards.
    virtual std::uint64_t load(std::size_t offset) = 0;

    /// A word of the own memory, seen by load(): operations given later come after what it announces. Needed
    /// where that is not fetched.
    virtual void follow([[maybe_unused]] std::size_t offset) {}

    // Rows as operations see them: in memory(), or in a copy of it on the device.
    /// Operations given later find zeros here. Before the peers can know of the place.
    virtual void clear(std::size_t offset, std::size_t bytes) { std::memset(memory() + offset, 0, bytes); }
    /// What peers have put here has been announced: it may be copied to the device. The place is not put to
    /// again before this rank has answered.
    virtual void fetch([[maybe_unused]] std::size_t offset, [[maybe_unused]] std::size_t bytes) {}
    /// Where operations given later find what was fetched, and may write until it is answered.
    virtual std::byte* fetched(std::size_t offset) { return memory() + offset; }
    /// A peer's memory() in this process; null where there is none.
    virtual std::byte* reach([[maybe_unused]] int peer) { return nullptr; }
};

/// A passive-target MPI window over `edge`, whose ranks share a node: there a put is a copy. Between nodes a
/// flush would wait until the target enters MPI. Collective; `bytes` may differ by rank. With `reaches` each
/// rank can address the memory of the others. If MPI offers no window to one of the ranks, all throw that
/// rank's Error, with Scope::all_ranks.
std::unique_ptr<Transport> make_mpi_window(comm::Communicator edge, std::size_t bytes, bool reaches = false);
/// Two-sided messages over `edge`, between any nodes: a push copies what was put and sends it as one message,
/// and a thread (comm::Progress) receives while this rank computes. Memory of finished messages is kept for
/// reuse while all messages together take at most `message_bytes`. Collective.
std::unique_ptr<Transport> make_messages(comm::Communicator edge, std::size_t bytes,
                                         std::size_t message_bytes);
/// Both ends are this rank; peer is 0.
std::unique_ptr<Transport> make_local(std::size_t bytes);

/// A link that is not there: what `inner` brings is seen `latency_s` after it was put, and `byte_s` later for
/// each byte; bytes to one peer follow each other, and what a rank sends to itself takes no link. The time
/// from which the word at `offset` is seen travels beside it and stands at `due_at + offset` (of the same
/// layout on all ranks, which share a clock).
struct LinkDelay {
    double latency_s = 0, byte_s = 0;
    std::size_t due_at = 0;
    int self = 0;  ///< this rank among the peers
};
std::unique_ptr<Transport> make_delayed(std::unique_ptr<Transport> inner, LinkDelay delay);

/// What a rank with a GPU knows of its end of an edge. The waiter and the backends outlive the transport.
struct GpuEnd {
    Backends backends;  ///< of one of the ends at least
    comm::Waiter& waiter;
    std::string edge;                     ///< for messages
    std::size_t words = 0;                ///< bytes at the start of the memory that the device does not see
    std::size_t bytes = 0;                ///< of the memory
    std::vector<std::size_t> peers = {};  ///< bytes of each one's memory
    std::size_t staging = 0;  ///< bytes of pinned memory for peers whose memory a copy cannot reach
};
/// Between a GPU's memory and `host`: copies on streams of their own, ordered by events. Rows go from the
/// device straight into the memory of peers that `host` reaches and CUDA pins, to others through pinned
/// memory; words follow once the copies are done, sent by whoever drives Progress. What comes is copied to a
/// second memory of the same layout on the device. `refused`: why CUDA does not pin the memory, if so.
std::unique_ptr<Transport> make_gpu_transport(std::unique_ptr<Transport> host, const GpuEnd& end,
                                              std::string& refused);
/// What a rank knows of an edge whose ranks all have GPUs. The backends outlive the transport.
struct DirectEnd {
    Backends backends;
    std::string edge;                 ///< for messages
    bool by_nccl = true;              ///< where no two ranks share a GPU; else by an MPI that reaches GPUs
    std::size_t words = 0;            ///< bytes at the start of the memory, which are the host's
    std::size_t bytes = 0;            ///< of the memory; rows are the device's
    std::vector<bool> sends = {};     ///< rows, to each peer that is another rank
    std::vector<bool> receives = {};  ///< rows, from each
    std::size_t staging = 0;          ///< bytes of the device's memory for rows that are written over
};
/// Rows go from device to device, words by messages over `edge`, any nodes. memory() holds the words alone.
/// Collective. Error(peer_lost) where a rank does not come.
std::unique_ptr<Transport> make_direct_transport(comm::Communicator edge, DirectEnd end);
/// Both ends are this rank and its GPU, whose memory the rows do not leave; `bytes` of memory, of which
/// `words` are the host's. What one end signals, the other's operations follow, without the host.
std::unique_ptr<Transport> make_gpu_local(const Backends& backends, std::size_t words, std::size_t bytes);

}  // namespace maestro::transport
