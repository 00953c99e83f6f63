// The way of an edge's rows from one GPU to another by NCCL.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <string>

#include "backend/cuda_stream.hpp"
#include "channel/transport.hpp"
#include "collective/nccl_communicator.hpp"

namespace maestro::channel {

/// Rows that follow each other on the device.
struct Run {
    std::byte* data;
    std::size_t bytes;
};

/// One way between two ranks: a communicator of these two alone, and a stream. NCCL's kernels hold a part of
/// the device until the other side comes; it takes those of a communicator one after another, and promises
/// nothing of the order in which those of several get on. No ranks wait for each other in a circle, because
/// - nothing but this way's rows is in the stream, and the stream waits for no event;
/// - a send is posted once its rows are there, and its receive when a message of the host says so, whatever
///   the device is at: neither side's kernel waits for what is computed, or for other ways' rows;
/// - a kernel has kBlocks blocks at most, so that those of all ways are on the device together;
/// - what NCCL allocates at a way's first use, and waits for the device for, is there when the edge is open.
class NcclLink {
public:
    static constexpr int kBlocks = 4;

    /// Begins to make it. `outward`: rows leave this rank; `peer` is a rank of the edge's communicator.
    NcclLink(const std::string& edge, comm::Waiter& waiter, const ncclUniqueId& id, bool outward, int peer);

    bool outward() const { return outward_; }
    int peer() const { return peer_; }
    /// Asks for all runs at once; only where settled(). Nothing is in the stream before it is again.
    void post(std::span<const Run> runs);
    /// Throws what NCCL has found.
    bool settled() const { return nccl_.settled(); }
    void settle(const char* what) const { nccl_.settle(what); }
    const backend::CudaStream& stream() const { return stream_; }
    const std::string& name() const { return name_; }

private:
    std::string name_;
    bool outward_;
    int peer_;
    backend::CudaStream stream_;
    collective::NcclCommunicator nccl_;  ///< goes before the stream that it works on
};

/// Collective over `edge`: the links of this rank, in an order that all ranks share, each used once. By peer,
/// whether rows go there, and whether they come from there.
std::list<NcclLink> open_links(const comm::Communicator& edge, const NcclEnd& end);

}  // namespace maestro::channel
