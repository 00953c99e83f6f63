// A connection that carries an edge's rows from one GPU to another, without the host's memory.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <span>

#include "transport/transport.hpp"

namespace maestro::transport {

/// Consecutive bytes of rows on the device.
struct Run {
    std::byte* data;
    std::size_t bytes;
};

/// One direction between two ranks. Called by one thread at a time, whose current GPU is the rank's.
class Link {
public:
    /// `outgoing`: this rank sends, otherwise it receives; `peer` is a rank of the edge's communicator.
    Link(bool outgoing, int peer) : outgoing_(outgoing), peer_(peer) {}
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    bool outgoing() const { return outgoing_; }
    int peer() const { return peer_; }
    /// Starts to send or receive all runs; needs ready(). The other side must post as many bytes.
    virtual void post(std::span<const Run> runs) = 0;
    /// Whether everything that was posted has been completed. Throws its error.
    virtual bool ready() = 0;

private:
    bool outgoing_;
    int peer_;
};

/// In an order that is the same on all ranks; they are destroyed in it too.
using Links = std::list<std::unique_ptr<Link>>;
/// Collective over `edge`, which outlives them.
Links open_mpi_links(const comm::Communicator& edge, const DirectEnd& end);

}  // namespace maestro::transport
