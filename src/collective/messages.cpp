// Collectives between real ranks: messages of MPI, each straight from where it lies to where it belongs. Open
// MPI's own collectives would do for some of the verbs, but choose their order of summation by size and
// layout, and take counts as int.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "collective/group.hpp"
#include "comm/check.hpp"

namespace maestro::collective {

namespace {

constexpr int kTag = 3;
constexpr std::size_t kLargest = std::size_t{1} << 30;  ///< bytes of one message of MPI, whose counts are int

class MessageGroup final : public Group {
public:
    MessageGroup(comm::Communicator members, backend::Backend& backend)
        : Group(members.rank(), members.size()), members_(std::move(members)), backend_(backend) {}

    void finish(Ticket ticket) override {
        MAESTRO_CHECK(ticket < exchanges_.size() && exchanges_[ticket].open, "{}: a ticket that is not open",
                      members_.name());
        Exchange& exchange = exchanges_[ticket];
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
        for (const Staged& s : exchange.staged)
            if (s.target) backend_.upload(s.bytes.data(), bytes_at(s.target, s.bytes.size()));
        exchange.staged.clear();
        exchange.open = false;
    }

protected:
    Ticket begin(std::span<const Message> out, std::span<const Message> in) override {
        auto free =
            std::find_if(exchanges_.begin(), exchanges_.end(), [](const Exchange& e) { return !e.open; });
        if (free == exchanges_.end()) free = exchanges_.emplace(free);
        free->open = true;
        free->requests.clear();
        free->due.clear();
        for (const Message& m : in)
            cut(received(*free, m), [&](std::byte* data, int bytes) {
                free->due.push_back(bytes);
                MAESTRO_MPI(MPI_Irecv(data, bytes, MPI_BYTE, m.peer, kTag, members_.handle(),
                                      &free->requests.emplace_back(MPI_REQUEST_NULL)));
            });
        for (const Message& m : out)
            cut(sent(*free, m), [&](std::byte* data, int bytes) {
                MAESTRO_MPI(MPI_Isend(data, bytes, MPI_BYTE, m.peer, kTag, members_.handle(),
                                      &free->requests.emplace_back(MPI_REQUEST_NULL)));
            });
        return static_cast<Ticket>(free - exchanges_.begin());
    }

private:
    struct Staged {  ///< of a message, in the host's memory
        std::vector<std::byte> bytes;
        void* target;  ///< on the device, of what comes
    };
    struct Exchange {
        bool open = false;
        std::vector<Staged> staged;
        std::vector<MPI_Request> requests;  ///< receives, then sends
        std::vector<int> due;               ///< bytes of the receives
    };
    static Tensor bytes_at(void* data, std::size_t bytes) {
        return Tensor(data, DType::u8, {static_cast<std::int64_t>(bytes)});
    }
    /// The message as MPI takes it.
    Message received(Exchange& exchange, const Message& m) {
        if (backend_.shares_memory()) return m;
        Staged& place = exchange.staged.emplace_back(Staged{std::vector<std::byte>(m.bytes), m.data});
        return {m.peer, place.bytes.data(), m.bytes};
    }
    Message sent(Exchange& exchange, const Message& m) {
        if (backend_.shares_memory()) return m;
        Staged& place = exchange.staged.emplace_back(Staged{std::vector<std::byte>(m.bytes), nullptr});
        backend_.download(bytes_at(m.data, m.bytes), place.bytes.data());
        return {m.peer, place.bytes.data(), m.bytes};
    }
    template <class Body>
    static void cut(const Message& m, Body&& body) {
        for (std::size_t at = 0; at < m.bytes; at += kLargest)
            body(static_cast<std::byte*>(m.data) + at, static_cast<int>(std::min(kLargest, m.bytes - at)));
    }

    comm::Communicator members_;
    backend::Backend& backend_;
    std::vector<Exchange> exchanges_;  ///< by ticket
};

}  // namespace

std::unique_ptr<Group> make_group(comm::Communicator members, backend::Backend& backend) {
    return std::make_unique<MessageGroup>(std::move(members), backend);
}

}  // namespace maestro::collective
