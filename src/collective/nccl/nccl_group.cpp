// A process group of GPUs by NCCL's sends and receives, on a dedicated stream. Sums are not NCCL's, whose
// order follows its ring. If a rank is missing, NCCL's kernel never ends. The host notices this where it
// waits for the device, and describe_pending() then names the group, or throws NCCL's error.
#include <nccl.h>

#include <span>
#include <utility>

#include "backend/cuda/stream.hpp"
#include "collective/implementations.hpp"
#include "collective/pending_exchanges.hpp"
#include "transport/nccl/nccl_communicator.hpp"

namespace maestro::collective {

namespace {

/// Collective. Rank 0 makes the id.
ncclUniqueId shared_id(const comm::Communicator& members) {
    ncclUniqueId id{};
    if (members.rank() == 0) id = transport::NcclCommunicator::make_id();
    members.broadcast(std::span(&id, 1));
    return id;
}

class NcclGroup final : public ProcessGroup {
public:
    NcclGroup(comm::Communicator members, Nodes nodes, backend::Backend& backend, std::string transport)
        : ProcessGroup(members.rank(), std::move(nodes), std::move(transport)),
          members_(std::move(members)),
          backend_(backend),
          nccl_(members_.name(), members_.waiter(), shared_id(members_), members_.rank(), members_.size()) {
        nccl_.wait_until_ready("ncclCommInitRankConfig");
        diagnostic_id_ = members_.waiter().add_diagnostic([this] { return describe_pending(); });
    }
    ~NcclGroup() override { members_.waiter().remove_diagnostic(diagnostic_id_); }

    void wait(Request request) override {
        Exchange& exchange = exchanges_.open(request, members_.name());
        exchange.open = false;
        if (!exchange.moves) return;
        // The device waits and not the host, which goes on to issue the operations that use the tensors.
        exchange.ended.block(backend_.stream());
        nccl_.ready();  // throws if NCCL has failed meanwhile
    }
    bool test(Request request) override {
        wait(request);
        return true;
    }

    bool overlaps() const override { return false; }

protected:
    Request begin(std::span<const Message> out, std::span<const Message> in) override {
        const Request request = exchanges_.begin();
        Exchange& exchange = exchanges_[request];
        exchange.moves = !out.empty() || !in.empty();
        if (exchange.moves) move(exchange, out, in);
        return request;
    }

private:
    struct Exchange {
        bool open = false;
        bool moves = false;
        backend::CudaEvent begun, ended;  ///< on the group's stream
    };
    /// Operations run one after another in the communicator's stream, in the same order on every rank. The
    /// sends and receives of one operation are one NCCL group and run at the same time. One after another
    /// they would deadlock: each send would wait for a receive that is queued behind a send that waits as
    /// well.
    void move(Exchange& exchange, std::span<const Message> out, std::span<const Message> in) {
        // Sends read what has been computed so far, and receives overwrite what it has read.
        computed_.record(backend_.stream());
        computed_.block(stream_);
        exchange.begun.record(stream_);
        nccl_.wait_until_ready(ncclGroupStart(), "ncclGroupStart");
        for (const Message& m : in)
            nccl_.wait_until_ready(ncclRecv(m.data, m.bytes, ncclUint8, m.peer, nccl_, stream_), "ncclRecv");
        for (const Message& m : out)
            nccl_.wait_until_ready(ncclSend(m.data, m.bytes, ncclUint8, m.peer, nccl_, stream_), "ncclSend");
        nccl_.wait_until_ready(ncclGroupEnd(), "ncclGroupEnd");  // only now are they in a stream
        exchange.ended.record(stream_);
    }
    /// Names the group if the device is executing one of its operations.
    std::string describe_pending() const {
        nccl_.ready();  // throws if NCCL has failed
        const bool any = exchanges_.any(
            [](const Exchange& e) { return e.moves && e.begun.reached() && !e.ended.reached(); });
        return any ? nccl_.others() : "";
    }

    comm::Communicator members_;
    backend::Backend& backend_;
    backend::CudaStream stream_;
    backend::CudaEvent computed_;
    PendingExchanges<Exchange> exchanges_;
    transport::NcclCommunicator nccl_;  ///< destroyed before the stream that it uses
    comm::Waiter::DiagnosticId diagnostic_id_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_nccl_group(comm::Communicator members, Nodes nodes,
                                              backend::Backend& backend, std::string transport) {
    return std::make_unique<NcclGroup>(std::move(members), std::move(nodes), backend, std::move(transport));
}

}  // namespace maestro::collective
