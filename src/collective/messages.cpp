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
    explicit MessageGroup(comm::Communicator members)
        : Group(members.rank(), members.size()), members_(std::move(members)) {}

protected:
    Ticket begin(std::span<const Message> out, std::span<const Message> in) override {
        auto open = std::find(open_.begin(), open_.end(), false);
        if (open == open_.end()) {
            open_.push_back(false);
            requests_.emplace_back();
            due_.emplace_back();
            open = std::prev(open_.end());
        }
        *open = true;
        const auto ticket = static_cast<Ticket>(open - open_.begin());
        std::vector<MPI_Request>& requests = requests_[ticket];
        requests.clear();
        due_[ticket].clear();
        for (const Message& m : in)
            cut(m, [&](std::byte* data, int bytes) {
                due_[ticket].push_back(bytes);
                MAESTRO_MPI(MPI_Irecv(data, bytes, MPI_BYTE, m.peer, kTag, members_.handle(),
                                      &requests.emplace_back(MPI_REQUEST_NULL)));
            });
        for (const Message& m : out)
            cut(m, [&](std::byte* data, int bytes) {
                MAESTRO_MPI(MPI_Isend(data, bytes, MPI_BYTE, m.peer, kTag, members_.handle(),
                                      &requests.emplace_back(MPI_REQUEST_NULL)));
            });
        return ticket;
    }

    void end(Ticket ticket) override {
        MAESTRO_CHECK(ticket < open_.size() && open_[ticket], "{}: a ticket that is not open",
                      members_.name());
        std::vector<MPI_Request>& requests = requests_[ticket];
        std::vector<MPI_Status> statuses(requests.size());
        members_.waiter().wait_until(
            [&] {
                int done = 0;
                MAESTRO_MPI(
                    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses.data()));
                return done != 0;
            },
            [&] { return fmt::format("the other {} ranks of {}", size() - 1, members_.name()); });
        for (std::size_t i = 0; i < due_[ticket].size(); ++i) {  // receives come first
            int bytes = 0;
            MAESTRO_MPI(MPI_Get_count(&statuses[i], MPI_BYTE, &bytes));
            MAESTRO_CHECK(bytes == due_[ticket][i], "{}: {} bytes came where {} were due", members_.name(),
                          bytes, due_[ticket][i]);
        }
        open_[ticket] = false;
    }

private:
    template <class Body>
    static void cut(const Message& m, Body&& body) {
        for (std::size_t at = 0; at < m.bytes; at += kLargest)
            body(static_cast<std::byte*>(m.data) + at, static_cast<int>(std::min(kLargest, m.bytes - at)));
    }

    comm::Communicator members_;
    std::vector<bool> open_;
    std::vector<std::vector<MPI_Request>> requests_;  ///< by ticket: receives, then sends
    std::vector<std::vector<int>> due_;               ///< bytes of the receives
};

}  // namespace

std::unique_ptr<Group> make_group(comm::Communicator members) {
    return std::make_unique<MessageGroup>(std::move(members));
}

}  // namespace maestro::collective
