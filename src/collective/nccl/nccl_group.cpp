// A process group of GPUs by NCCL, on a dedicated stream: NCCL's collectives for sums and for gathers of
// equal parts, and its sends and receives for everything else. If a rank is missing, NCCL's kernel never
// ends. The host notices this where it waits for the device, and describe_pending() then names the group, or
// throws NCCL's error.
#include <nccl.h>

#include <span>
#include <utility>

#include "backend/cuda/stream.hpp"
#include "collective/implementations.hpp"
#include "collective/pending_exchanges.hpp"
#include "collective/rank_rows.hpp"
#include "comm/rendezvous.hpp"
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

ncclDataType_t type_of(const Tensor& tensor) {
    switch (tensor.dtype) {
        case DType::f32:
            return ncclFloat32;
        case DType::f64:
            return ncclFloat64;
        case DType::bf16:
            return ncclBfloat16;
        default:
            MAESTRO_FAIL("NCCL does not sum {}", tensor.describe());
    }
}

class NcclGroup final : public ProcessGroup, private NativeCollectives {
public:
    NcclGroup(comm::Communicator members, Nodes nodes, backend::Backend& backend, Sums sums,
              std::string transport)
        : ProcessGroup(members.rank(), std::move(nodes), std::move(transport)),
          members_(std::move(members)),
          backend_(backend),
          rendezvous_(members_),
          nccl_(members_.name(), members_.waiter(), shared_id(members_), members_.rank(), members_.size(),
                stream_) {
        use(*this, sums);
        diagnostic_id_ = members_.waiter().add_diagnostic([this] { return describe_pending(); });
    }
    ~NcclGroup() override { members_.waiter().remove_diagnostic(diagnostic_id_); }

    void wait(Request request) override {
        Exchange& exchange = exchanges_.open(request, members_.name());
        if (exchange.kind == Kind::rendezvous)
            return members_.waiter().wait_until([&] { return met(exchange); },
                                                [&] { return rendezvous_.missing(); });
        exchange.open = false;
        if (exchange.kind == Kind::nothing) return;
        // The device waits and not the host, which goes on to issue the operations that use the tensors.
        exchange.ended.block(backend_.stream());
        nccl_.check();
    }
    bool test(Request request) override {
        Exchange& exchange = exchanges_.open(request, members_.name());
        if (exchange.kind == Kind::rendezvous) return met(exchange);
        // A device that waited instead would keep the tasks behind it waiting as well, on which the other
        // ranks may depend.
        const bool ended = exchange.kind == Kind::nothing || exchange.ended.reached();
        if (ended)
            wait(request);
        else
            nccl_.check();
        return ended;
    }
    std::string describe(Request request) const override {
        const bool waits = exchanges_.open(request, members_.name()).kind == Kind::rendezvous;
        return waits ? rendezvous_.missing() : nccl_.others();
    }

    Operation launch_rendezvous() override {
        const Request request = exchanges_.begin();
        Exchange& exchange = exchanges_[request];
        exchange.kind = Kind::rendezvous;
        computed_.record(backend_.stream());
        co_await AwaitedExchange{this, request};
        computed_before_rendezvous_ = true;
    }

protected:
    Request begin(std::span<const Message> out, std::span<const Message> in) override {
        if (out.empty() && in.empty()) {
            const Request request = exchanges_.begin();
            exchanges_[request].kind = Kind::nothing;
            return request;
        }
        // The sends and receives of one operation are one NCCL group and run at the same time. One after
        // another they would deadlock: each send would wait for a receive that is queued behind a send that
        // waits as well.
        return issue([&] {
            nccl_.check(ncclGroupStart(), "ncclGroupStart");
            for (const Message& m : in)
                nccl_.check(ncclRecv(m.data, m.bytes, ncclUint8, m.peer, nccl_, stream_), "ncclRecv");
            for (const Message& m : out)
                nccl_.check(ncclSend(m.data, m.bytes, ncclUint8, m.peer, nccl_, stream_), "ncclSend");
            nccl_.check(ncclGroupEnd(), "ncclGroupEnd");
        });
    }

private:
    enum class Kind { nothing, moves, rendezvous };
    struct Exchange {
        bool open = false;
        Kind kind = Kind::nothing;
        backend::CudaEvent begun, ended;  ///< of what moves, on the group's stream
    };

    Request begin_sum_scatter(const RankRows& parts, const Tensor& local) override {
        const ncclDataType_t type = type_of(local);
        return issue([&] {
            if (parts.equal())
                return nccl_.check(
                    ncclReduceScatter(parts.whole().data, local.data, static_cast<std::size_t>(local.size()),
                                      type, ncclSum, nccl_, stream_),
                    "ncclReduceScatter");
            // One reduction to each rank, all at the same time.
            nccl_.check(ncclGroupStart(), "ncclGroupStart");
            for (int r = 0; r < size(); ++r)
                if (const Tensor part = parts[r]; !part.empty())
                    nccl_.check(
                        ncclReduce(part.data, r == rank() ? local.data : nullptr,
                                   static_cast<std::size_t>(part.size()), type, ncclSum, r, nccl_, stream_),
                        "ncclReduce");
            nccl_.check(ncclGroupEnd(), "ncclGroupEnd");
        });
    }
    Request begin_all_gather(const Tensor& local, const Tensor& whole) override {
        return issue([&] {
            nccl_.check(ncclAllGather(local.data, whole.data, local.bytes(), ncclUint8, nccl_, stream_),
                        "ncclAllGather");
        });
    }
    Request begin_all_sum(const Tensor& values) override {
        return issue([&] {
            nccl_.check(ncclAllReduce(values.data, values.data, static_cast<std::size_t>(values.size()),
                                      type_of(values), ncclSum, nccl_, stream_),
                        "ncclAllReduce");
        });
    }
    /// Operations run one after another in the communicator's stream, in the same order on every rank.
    template <class Call>
    Request issue(Call&& call) {
        const Request request = exchanges_.begin();
        Exchange& exchange = exchanges_[request];
        exchange.kind = Kind::moves;
        // They read what has been computed so far, and overwrite what that has read.
        if (!std::exchange(computed_before_rendezvous_, false)) computed_.record(backend_.stream());
        computed_.block(stream_);
        exchange.begun.record(stream_);
        call();
        exchange.ended.record(stream_);
        return request;
    }
    bool met(Exchange& exchange) {
        if (!rendezvous_.begun()) {
            if (!computed_.reached()) return false;
            rendezvous_.begin();
        }
        exchange.open = !rendezvous_.test();
        return !exchange.open;
    }
    /// Names the group if the device is executing one of its operations.
    std::string describe_pending() const {
        nccl_.check();
        const bool any = exchanges_.any([](const Exchange& e) {
            return e.kind == Kind::moves && e.begun.reached() && !e.ended.reached();
        });
        return any ? nccl_.others() : "";
    }

    comm::Communicator members_;
    backend::Backend& backend_;
    backend::CudaStream stream_;
    backend::CudaEvent computed_;  ///< on the compute stream: what the next operation waits for
    bool computed_before_rendezvous_ = false;
    comm::Rendezvous rendezvous_;
    PendingExchanges<Exchange> exchanges_;
    transport::NcclCommunicator nccl_;  ///< destroyed before the stream that it uses
    comm::Waiter::DiagnosticId diagnostic_id_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_nccl_group(comm::Communicator members, Nodes nodes,
                                              backend::Backend& backend, Sums sums, std::string transport) {
    return std::make_unique<NcclGroup>(std::move(members), std::move(nodes), backend, sums,
                                       std::move(transport));
}

}  // namespace maestro::collective
