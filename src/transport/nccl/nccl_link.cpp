#include <fmt/format.h>

#include <vector>

#include "backend/arena.hpp"
#include "backend/cuda/stream.hpp"
#include "transport/link.hpp"
#include "transport/nccl/nccl_communicator.hpp"

namespace maestro::transport {

namespace {

/// A communicator of two ranks, and a stream. An NCCL kernel occupies a part of the device until the other
/// side joins its operation. Kernels of one communicator run one after another, but NCCL promises
/// nothing about the order of those of several. No ranks wait for each other in a circle, because
/// - the stream carries nothing but the rows of this connection and waits for no event;
/// - a send is posted once its rows have been computed, and its receive when the host's message announces it,
///   whatever the device is doing. So neither side's kernel waits for kernels of the model or for rows of
///   other connections;
/// - a kernel has at most kNcclEdgeBlocks blocks, so that those of all connections fit on the device
/// together;
/// - NCCL allocates memory, and waits for the device, at the first use of a connection, which is part of
///   opening the edge.
class NcclLink final : public Link {
public:
    NcclLink(const std::string& edge, comm::Waiter& waiter, const ncclUniqueId& id, bool outgoing, int peer)
        : Link(outgoing, peer),
          name_(fmt::format("edge {} {} its rank {}", edge, outgoing ? "to" : "from", peer)),
          waiter_(waiter),
          nccl_(name_, waiter, id, outgoing ? 0 : 1, 2, kNcclEdgeBlocks) {}

    void post(std::span<const Run> runs) override {
        const int other = outgoing() ? 1 : 0;
        nccl_.check(ncclGroupStart(), "ncclGroupStart");
        for (const Run& run : runs)
            if (outgoing())
                nccl_.check(ncclSend(run.data, run.bytes, ncclUint8, other, nccl_, stream_), "ncclSend");
            else
                nccl_.check(ncclRecv(run.data, run.bytes, ncclUint8, other, nccl_, stream_), "ncclRecv");
        nccl_.check(ncclGroupEnd(), "ncclGroupEnd");
    }
    bool ready() override { return nccl_.ready(); }
    void mark(backend::CudaEvent& moved) const override { moved.record(stream_); }

    void wait_until_made() const { nccl_.wait_until_ready("ncclCommInitRankConfig"); }
    /// Collective with the other side.
    void use(const Run& run) {
        backend::CudaEvent used;
        post(std::span(&run, 1));
        nccl_.wait_until_ready("the first message");
        mark(used);
        waiter_.wait_until([&] { return used.reached(); },
                           [&] { return fmt::format("the first message of {}", name_); });
    }

private:
    std::string name_;
    comm::Waiter& waiter_;
    backend::CudaStream stream_;
    transport::NcclCommunicator nccl_;  ///< destroyed before the stream that it uses
};

}  // namespace

Links open_nccl_links(const comm::Communicator& edge, const DirectEnd& end) {
    std::list<std::unique_ptr<NcclLink>> made;
    for (int from = 0; from < edge.size(); ++from) {
        std::vector<ncclUniqueId> ids(static_cast<std::size_t>(edge.size()));
        for (std::size_t to = 0; to < ids.size(); ++to)
            if (from == edge.rank() && end.sends[to]) ids[to] = transport::NcclCommunicator::make_id();
        edge.broadcast(std::span(ids), from);
        for (int to = 0; to < edge.size(); ++to) {
            const bool outgoing = from == edge.rank() && end.sends[to];
            if (outgoing || (to == edge.rank() && end.receives[from]))
                made.push_back(std::make_unique<NcclLink>(end.edge, edge.waiter(), ids[to], outgoing,
                                                          outgoing ? to : from));
        }
    }
    // All communicators start to initialize before any is waited for. If each were waited for at once, ranks
    // would wait for one another in long chains.
    for (const auto& link : made) link->wait_until_made();
    const backend::Buffer one(*end.backends.any(), 1);
    Links links;
    for (auto& link : made) {
        link->use({static_cast<std::byte*>(one.data()), one.bytes()});
        links.push_back(std::move(link));
    }
    return links;
}

}  // namespace maestro::transport
