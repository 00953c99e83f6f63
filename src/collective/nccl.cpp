// Collectives of GPUs by NCCL: its sends and receives, on a stream of the group's own. Sums are not NCCL's,
// whose order follows the ring. Its communicators are non-blocking: whatever waits for other ranks, waits in
// a Waiter. What runs on the device without end (a rank that does not come) is seen where the host waits for
// the device: there the group is named, and NCCL's own error thrown.
#include <fmt/format.h>
#include <nccl.h>

#include <exception>
#include <utility>

#include "backend/cuda_stream.hpp"
#include "base/check.hpp"
#include "collective/exchanges.hpp"
#include "collective/ways.hpp"

namespace maestro::collective {

namespace {

[[noreturn]] void nccl_failed(ncclResult_t found, ncclComm_t communicator, const std::string& group,
                              const char* expression) {
    const char* said = ncclGetLastError(communicator);
    throw Error(found == ncclRemoteError ? ExitCode::peer_lost : ExitCode::broken_invariant,
                fmt::format("{}: {}: {}{}{} (NCCL_DEBUG=INFO says more)", group, expression,
                            ncclGetErrorString(found), said && *said ? ": " : "", said ? said : ""));
}

/// Owns the communicator. Calls are the main thread's.
class NcclCommunicator {
public:
    /// Collective. `members` must outlive it.
    explicit NcclCommunicator(const comm::Communicator& members) : members_(members) {
        ncclUniqueId id{};
        if (members.rank() == 0) settle(ncclGetUniqueId(&id), "ncclGetUniqueId");
        members.broadcast(std::span(&id, 1));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        try {
            settle(ncclCommInitRankConfig(&handle_, members.size(), id, members.rank(), &config),
                   "ncclCommInitRankConfig");
        } catch (...) {
            abort();
            throw;
        }
    }
    ~NcclCommunicator() {
        if (handle_ == nullptr) return;
        if (exceptions_ < std::uncaught_exceptions()) {  // the others may never come
            abort();
            return;
        }
        try {
            settle(ncclCommFinalize(handle_), "ncclCommFinalize");
            ncclCommDestroy(std::exchange(handle_, nullptr));
        } catch (const Error&) {
            abort();
        }
    }
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;
    operator ncclComm_t() const { return handle_; }

    /// Returns once a call is through, which may take the other ranks. Error(peer_lost) after the deadline.
    void settle(ncclResult_t found, const char* expression) const {
        if (found == ncclInProgress)
            members_.waiter().wait_until(
                [&] {
                    found = state();
                    return found != ncclInProgress;
                },
                [&] { return fmt::format("{} in {}", others(), expression); });
        if (found != ncclSuccess) nccl_failed(found, handle_, members_.name(), expression);
    }
    /// Throws what NCCL has found since, on its own.
    void look() const {
        if (const ncclResult_t found = state(); found != ncclSuccess && found != ncclInProgress)
            nccl_failed(found, handle_, members_.name(), "what runs on the GPU");
    }
    std::string others() const {
        return fmt::format("the other {} ranks of {}, by NCCL", members_.size() - 1, members_.name());
    }

private:
    ncclResult_t state() const {
        ncclResult_t found = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(handle_, &found);
        return asked == ncclSuccess ? found : asked;
    }
    void abort() {
        if (handle_) ncclCommAbort(std::exchange(handle_, nullptr));
    }

    const comm::Communicator& members_;
    int exceptions_ = std::uncaught_exceptions();
    ncclComm_t handle_ = nullptr;
};

class NcclGroup final : public Group {
public:
    NcclGroup(comm::Communicator members, backend::Backend& backend, std::string way)
        : Group(members.rank(), members.size(), std::move(way)),
          members_(std::move(members)),
          backend_(backend),
          nccl_(members_),
          look_(members_.waiter().add_look([this] { return under_way(); })) {}
    ~NcclGroup() override { members_.waiter().remove_look(look_); }

    void finish(Ticket ticket) override {
        Exchange& exchange = exchanges_.open(ticket, members_.name());
        exchange.open = false;
        if (!exchange.moves) return;
        exchange.ended.hold(backend_.stream());
        nccl_.look();
    }

protected:
    Ticket begin(std::span<const Message> out, std::span<const Message> in) override {
        const Ticket ticket = exchanges_.begin();
        Exchange& exchange = exchanges_[ticket];
        exchange.moves = !out.empty() || !in.empty();
        if (exchange.moves) move(exchange, out, in);
        return ticket;
    }

private:
    struct Exchange {
        bool open = false;
        bool moves = false;
        backend::CudaEvent begun, ended;  ///< on the group's stream
    };
    /// The communicator's stream takes them one after another, as every rank does.
    void move(Exchange& exchange, std::span<const Message> out, std::span<const Message> in) {
        computed_.record(backend_.stream());
        computed_.hold(stream_);
        exchange.begun.record(stream_);
        nccl_.settle(ncclGroupStart(), "ncclGroupStart");
        for (const Message& m : in)
            nccl_.settle(ncclRecv(m.data, m.bytes, ncclUint8, m.peer, nccl_, stream_), "ncclRecv");
        for (const Message& m : out)
            nccl_.settle(ncclSend(m.data, m.bytes, ncclUint8, m.peer, nccl_, stream_), "ncclSend");
        nccl_.settle(ncclGroupEnd(), "ncclGroupEnd");  // before that they are in no stream
        exchange.ended.record(stream_);
    }
    /// What of this group a device is in the midst of.
    std::string under_way() const {
        nccl_.look();
        const bool any = exchanges_.any(
            [](const Exchange& e) { return e.moves && e.begun.reached() && !e.ended.reached(); });
        return any ? nccl_.others() : "";
    }

    comm::Communicator members_;
    backend::Backend& backend_;
    backend::CudaStream stream_;
    backend::CudaEvent computed_;
    Exchanges<Exchange> exchanges_;
    NcclCommunicator nccl_;  ///< goes before the stream that it works on
    comm::Waiter::LookId look_;
};

}  // namespace

std::string nccl_version() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Group> make_nccl_group(comm::Communicator members, backend::Backend& backend,
                                       std::string way) {
    return std::make_unique<NcclGroup>(std::move(members), backend, std::move(way));
}

}  // namespace maestro::collective
