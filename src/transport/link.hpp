// The way of an edge's rows from one GPU to another, without the host's memory.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <span>

#include "transport/transport.hpp"

namespace maestro::backend {
class CudaEvent;
}

namespace maestro::transport {

/// Rows that follow each other on the device.
struct Run {
    std::byte* data;
    std::size_t bytes;
};

/// One way between two ranks. Calls of one at a time, by any thread whose GPU is the rank's.
class Link {
public:
    /// `outward`: rows leave this rank; `peer` is a rank of the edge's communicator.
    Link(bool outward, int peer) : outward_(outward), peer_(peer) {}
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    bool outward() const { return outward_; }
    int peer() const { return peer_; }
    /// Asks for all runs at once; only where settled(). What the other side posts then has as many bytes.
    virtual void post(std::span<const Run> runs) = 0;
    /// Whether what was posted is through, or in a stream. Throws what went wrong.
    virtual bool settled() = 0;
    /// Only where settled(): `moved` is reached once what was posted is through.
    virtual void mark(backend::CudaEvent& moved) const = 0;

private:
    bool outward_;
    int peer_;
};

/// In an order that all ranks share, in which they also go.
using Links = std::list<std::unique_ptr<Link>>;
/// Collective over `edge`, which outlives them.
Links open_nccl_links(const comm::Communicator& edge, const DirectEnd& end);
Links open_mpi_links(const comm::Communicator& edge, const DirectEnd& end);

}  // namespace maestro::transport
