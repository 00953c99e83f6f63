// Collectives between real ranks: messages of MPI, each straight from where it lies to where it belongs. Open
// MPI's own collectives would do for some of the verbs, but choose their order of summation by size and
// layout, and take counts as int.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "collective/implementations.hpp"
#include "collective/pending_exchanges.hpp"
#include "comm/check.hpp"

namespace maestro::collective {

namespace {

class MpiGroup final : public ProcessGroup {
public:
    MpiGroup(comm::Communicator members, std::size_t piece, std::string transport)
        : ProcessGroup(members.rank(), members.size(), std::move(transport)),
          members_(std::move(members)),
          piece_(piece) {}

    void wait(Request request) override {
        Exchange& exchange = exchanges_.open(request, members_.name());
        std::vector<MPI_Status> statuses(exchange.requests.size());
        members_.waiter().wait_until(
            [&] {
                int done = 0;
                MAESTRO_MPI(MPI_Testall(static_cast<int>(exchange.requests.size()), exchange.requests.data(),
                                        &done, statuses.data()));
                return done != 0;
            },
            [&] { return fmt::format("the other {} ranks of {}", size() - 1, members_.name()); });
        for (std::size_t i = 0; i < exchange.due.size(); ++i) {
            int bytes = 0;
            MAESTRO_MPI(MPI_Get_count(&statuses[i], MPI_BYTE, &bytes));
            MAESTRO_CHECK(bytes == exchange.due[i], "{}: {} bytes came where {} were due", members_.name(),
                          bytes, exchange.due[i]);
        }
        exchange.open = false;
    }

protected:
    Request begin(std::span<const Message> out, std::span<const Message> in) override {
        const Request request = exchanges_.begin();
        Exchange& exchange = exchanges_[request];
        exchange.requests.clear();
        exchange.due.clear();
        for (const Message& m : in)
            in_pieces(m.data, m.bytes, piece_, [&](std::byte* data, int bytes) {
                exchange.due.push_back(bytes);
                MAESTRO_MPI(MPI_Irecv(data, bytes, MPI_BYTE, m.peer, kMessageTag, members_.handle(),
                                      &exchange.requests.emplace_back(MPI_REQUEST_NULL)));
            });
        for (const Message& m : out)
            in_pieces(m.data, m.bytes, piece_, [&](std::byte* data, int bytes) {
                MAESTRO_MPI(MPI_Isend(data, bytes, MPI_BYTE, m.peer, kMessageTag, members_.handle(),
                                      &exchange.requests.emplace_back(MPI_REQUEST_NULL)));
            });
        return request;
    }

private:
    struct Exchange {
        bool open = false;
        std::vector<MPI_Request> requests;  ///< receives, then sends
        std::vector<int> due;               ///< bytes of the receives
    };

    comm::Communicator members_;
    std::size_t piece_;
    PendingExchanges<Exchange> exchanges_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_mpi_group(comm::Communicator members, std::size_t piece,
                                             std::string transport) {
    return std::make_unique<MpiGroup>(std::move(members), piece, std::move(transport));
}

}  // namespace maestro::collective
