// What a channel needs from the machine: memory that peers write into, and four verbs. How bytes travel is
// decided here and nowhere else: by pointer within a rank, by windows within a node, by messages between
// nodes, late over an emulated link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.hpp"

namespace maestro::channel {

/// Owns this rank's exposed memory (zeroed at the start). Peers are ranks of the edge's communicator; a rank
/// may be its own. Used by one thread. No call waits for a peer.
class Transport {
public:
    virtual ~Transport() = default;
    virtual std::byte* memory() = 0;  ///< this rank's exposed memory, 64-byte aligned
    /// Bytes for `peer`'s memory at byte `offset`; `source` stays untouched until push().
    virtual void put(int peer, std::size_t offset, const void* source, std::size_t bytes) = 0;
    /// Sets a word of `peer`'s memory, seen there only after all that was put to that peer before.
    virtual void signal(int peer, std::size_t offset, std::uint64_t word) = 0;
    /// Sends what was put and signalled to `peer` so far on its way. The sources are free afterwards.
    virtual void push(int peer) = 0;
    /// A word of the own memory that a peer signals; what that peer put before it is visible afterwards.
    virtual std::uint64_t load(std::size_t offset) = 0;
};

/// Passive-target window over `edge`, whose ranks share a node: there a put is a copy (across nodes a flush
/// would wait until the target enters MPI). Collective; every rank its own `bytes`. Throws what MPI throws
/// where it offers no window.
std::unique_ptr<Transport> make_mpi_window(comm::Communicator edge, std::size_t bytes);
/// Ordinary messages over `edge`, any nodes: what is pushed is copied and sent as one message, and a thread
/// of the waiter's (comm::Progress) takes messages in while this rank computes. Collective.
std::unique_ptr<Transport> make_messages(comm::Communicator edge, std::size_t bytes);
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

}  // namespace maestro::channel
