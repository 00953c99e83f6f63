// A process group over MPI point-to-point messages, sent from and received into the tensors themselves. MPI's
// own collectives would serve for some of the operations, but they choose the order of summation by size and
// number of ranks, and take counts as int.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "collective/implementations.hpp"
#include "collective/pending_exchanges.hpp"
#include "comm/check.hpp"

namespace maestro::collective {

namespace {

class MpiGroup final : public ProcessGroup {
public:
    MpiGroup(comm::Communicator members, Nodes nodes, std::size_t max_message, std::string transport)
        : ProcessGroup(members.rank(), std::move(nodes), std::move(transport)),
          members_(std::move(members)),
          max_message_(max_message) {}

    /// Open MPI advances a large message only while a rank is inside MPI, so most of an exchange happens here
    /// and not while the rank computes.
    void wait(Request request) override {
        members_.waiter().wait_until([&] { return test(request); }, [&] { return describe(request); });
    }
    std::string describe(Request request) const override {
        const Exchange& exchange = exchanges_.open(request, members_.name());
        std::set<int> silent;
        for (std::size_t i = 0; i < exchange.requests.size(); ++i) {
            int done = 0;
            MAESTRO_MPI(MPI_Request_get_status(exchange.requests[i], &done, MPI_STATUS_IGNORE));
            if (done == 0) silent.insert(members_.world_rank_of(exchange.peers[i]));
        }
        return fmt::format("{} {} of {}", silent.size() == 1 ? "rank" : "ranks", fmt::join(silent, ", "),
                           members_.name());
    }

    bool test(Request request) override {
        Exchange& exchange = exchanges_.open(request, members_.name());
        std::vector<MPI_Status> statuses(exchange.requests.size());
        // Completes either all requests or none, so the statuses of receives that ended early are kept.
        int done = 0;
        MAESTRO_MPI(MPI_Testall(static_cast<int>(exchange.requests.size()), exchange.requests.data(), &done,
                                statuses.data()));
        if (done == 0) return false;
        // MPI reports a message that is longer than its buffer, but a shorter one counts as received.
        for (std::size_t i = 0; i < exchange.expected.size(); ++i) {
            int bytes = 0;
            MAESTRO_MPI(MPI_Get_count(&statuses[i], MPI_BYTE, &bytes));
            MAESTRO_CHECK(bytes == exchange.expected[i], "{}: received {} bytes, expected {}",
                          members_.name(), bytes, exchange.expected[i]);
        }
        exchange.open = false;
        return true;
    }

protected:
    Request begin(std::span<const Message> sends, std::span<const Message> receives) override {
        const Request request = exchanges_.begin();
        Exchange& exchange = exchanges_[request];
        exchange.requests.clear();
        exchange.expected.clear();
        exchange.peers.clear();
        // No call blocks, and every rank posts all its receives before it waits, so no order of messages can
        // deadlock. Members begin the same operations in the same order, and MPI matches the messages of two
        // ranks in the order in which they are posted: segments and operations need no tags.
        //
        // Receives come first: a message that finds its receive posted goes straight into the tensor.
        for (const Message& m : receives)
            in_segments(m.data, m.bytes, max_message_, [&](std::byte* data, int bytes) {
                exchange.expected.push_back(bytes);
                exchange.peers.push_back(m.peer);
                MAESTRO_MPI(MPI_Irecv(data, bytes, MPI_BYTE, m.peer, kMessageTag, members_.handle(),
                                      &exchange.requests.emplace_back(MPI_REQUEST_NULL)));
            });
        for (const Message& m : sends)
            in_segments(m.data, m.bytes, max_message_, [&](std::byte* data, int bytes) {
                exchange.peers.push_back(m.peer);
                MAESTRO_MPI(MPI_Isend(data, bytes, MPI_BYTE, m.peer, kMessageTag, members_.handle(),
                                      &exchange.requests.emplace_back(MPI_REQUEST_NULL)));
            });
        return request;
    }

private:
    struct Exchange {
        bool open = false;
        std::vector<MPI_Request> requests;  ///< receives, then sends
        std::vector<int> expected;          ///< bytes of each receive
        std::vector<int> peers;             ///< of each request
    };

    comm::Communicator members_;
    std::size_t max_message_;
    PendingExchanges<Exchange> exchanges_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_mpi_group(comm::Communicator members, Nodes nodes, std::size_t max_message,
                                             std::string transport) {
    return std::make_unique<MpiGroup>(std::move(members), std::move(nodes), max_message,
                                      std::move(transport));
}

}  // namespace maestro::collective
