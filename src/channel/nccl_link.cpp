#include "channel/nccl_link.hpp"

#include <fmt/format.h>

#include <vector>

#include "backend/arena.hpp"

namespace maestro::channel {

NcclLink::NcclLink(const std::string& edge, comm::Waiter& waiter, const ncclUniqueId& id, bool outward,
                   int peer)
    : name_(fmt::format("edge {} {} its rank {}", edge, outward ? "to" : "from", peer)),
      outward_(outward),
      peer_(peer),
      nccl_(name_, waiter, id, outward ? 0 : 1, 2, kBlocks) {}

void NcclLink::post(std::span<const Run> runs) {
    const int other = outward_ ? 1 : 0;
    nccl_.begun(ncclGroupStart(), "ncclGroupStart");
    for (const Run& run : runs)
        if (outward_)
            nccl_.begun(ncclSend(run.data, run.bytes, ncclUint8, other, nccl_, stream_), "ncclSend");
        else
            nccl_.begun(ncclRecv(run.data, run.bytes, ncclUint8, other, nccl_, stream_), "ncclRecv");
    nccl_.begun(ncclGroupEnd(), "ncclGroupEnd");
}

std::list<NcclLink> open_links(const comm::Communicator& edge, const NcclEnd& end) {
    std::list<NcclLink> links;
    const auto ranks = static_cast<std::size_t>(edge.size());
    for (int from = 0; from < edge.size(); ++from) {
        std::vector<ncclUniqueId> ids(ranks);
        for (std::size_t to = 0; to < ranks; ++to)
            if (from == edge.rank() && end.sends[to]) ids[to] = collective::NcclCommunicator::make_id();
        edge.broadcast(std::span(ids), from);
        for (int to = 0; to < edge.size(); ++to) {
            const bool outward = from == edge.rank() && end.sends[to];
            if (outward || (to == edge.rank() && end.receives[from]))
                links.emplace_back(end.edge, edge.waiter(), ids[to], outward, outward ? to : from);
        }
    }
    for (const NcclLink& link : links) link.settle("ncclCommInitRankConfig");
    const backend::Buffer greeting(*end.backends.any(), 1);
    const Run run{static_cast<std::byte*>(greeting.data()), greeting.bytes()};
    backend::CudaEvent greeted;
    for (NcclLink& link : links) {
        link.post(std::span(&run, 1));
        link.settle("the first message");
        greeted.record(link.stream());
        edge.waiter().wait_until([&] { return greeted.reached(); },
                                 [&] { return fmt::format("the first message of {}", link.name()); });
    }
    return links;
}

}  // namespace maestro::channel
