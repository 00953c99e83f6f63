#include <fmt/format.h>

#include <vector>

#include "backend/arena.hpp"
#include "backend/cuda/stream.hpp"
#include "transport/link.hpp"
#include "transport/nccl/nccl_communicator.hpp"

namespace maestro::transport {

namespace {

constexpr int kBlocks = 4;  ///< of a GPU, that a kernel takes at most

/// A communicator of two ranks alone, and a stream. NCCL's kernels hold a part of the device until the other
/// side comes; it takes those of a communicator one after another, and promises nothing of the order in which
/// those of several get on. No ranks wait for each other in a circle, because
/// - nothing but this connection's rows is in the stream, and the stream waits for no event;
/// - a send is posted once its rows are there, and its receive when a message of the host says so, whatever
///   the device is doing: neither side's kernel waits for kernels of the model, or for rows of other
///   connections;
/// - a kernel has kBlocks blocks at most, so that those of all connections fit on the device together;
/// - NCCL allocates memory, and waits for the device, at the first use of a connection, which is when the
/// edge is
///   opened.
class NcclLink final : public Link {
public:
    NcclLink(const std::string& edge, comm::Waiter& waiter, const ncclUniqueId& id, bool outward, int peer)
        : Link(outward, peer),
          name_(fmt::format("edge {} {} its rank {}", edge, outward ? "to" : "from", peer)),
          waiter_(waiter),
          nccl_(name_, waiter, id, outward ? 0 : 1, 2, kBlocks) {}

    void post(std::span<const Run> runs) override {
        const int other = outward() ? 1 : 0;
        nccl_.begun(ncclGroupStart(), "ncclGroupStart");
        for (const Run& run : runs)
            if (outward())
                nccl_.begun(ncclSend(run.data, run.bytes, ncclUint8, other, nccl_, stream_), "ncclSend");
            else
                nccl_.begun(ncclRecv(run.data, run.bytes, ncclUint8, other, nccl_, stream_), "ncclRecv");
        nccl_.begun(ncclGroupEnd(), "ncclGroupEnd");
    }
    bool settled() override { return nccl_.settled(); }
    void mark(backend::CudaEvent& moved) const override { moved.record(stream_); }

    void wait_until_made() const { nccl_.settle("ncclCommInitRankConfig"); }
    /// Collective with the other side.
    void use(const Run& run) {
        backend::CudaEvent used;
        post(std::span(&run, 1));
        nccl_.settle("the first message");
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
            const bool outward = from == edge.rank() && end.sends[to];
            if (outward || (to == edge.rank() && end.receives[from]))
                made.push_back(std::make_unique<NcclLink>(end.edge, edge.waiter(), ids[to], outward,
                                                          outward ? to : from));
        }
    }
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
