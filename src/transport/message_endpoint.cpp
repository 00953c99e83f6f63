#include "transport/message_endpoint.hpp"

#include <exception>
#include <utility>

namespace maestro::transport {

namespace {

constexpr int kTag = 2;

template <class T>
void append(Bytes& to, const T* values, std::size_t count) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values);
    to.insert(to.end(), bytes, bytes + count * sizeof(T));
}

}  // namespace

void close_message(Bytes& payload, std::span<const Extent> extents, std::span<const Word> words) {
    const std::uint64_t counts[] = {extents.size(), words.size()};
    append(payload, extents.data(), extents.size());
    append(payload, words.data(), words.size());
    append(payload, counts, 2);
}

Mail::Mail(comm::Communicator edge, Deliver deliver)
    : edge_(std::move(edge)),
      deliver_(std::move(deliver)),
      inbox_(static_cast<std::size_t>(edge_.size())),
      turn_(edge_.waiter().progress().add([this] { return take_turn(); })) {}

Mail::~Mail() {
    if (std::uncaught_exceptions() == 0) {
        try {
            edge_.waiter().wait_until([this] { return all_sent(); },
                                      [this] { return "the last messages of " + edge_.name(); });
        } catch (const std::exception&) {
            // the peers are gone, and say so themselves
        }
    }
    edge_.waiter().progress().remove(turn_);
}

Bytes Mail::spare() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return {};
    Bytes bytes = std::move(spare_.back());
    spare_.pop_back();
    bytes.clear();
    return bytes;
}

/// MPI keeps the order of messages between two ranks.
void Mail::send(int peer, Bytes message) {
    const std::lock_guard lock(mutex_);
    Message& last = sent_.emplace_back(Message{.bytes = std::move(message)});
    MAESTRO_MPI(MPI_Isend(last.bytes.data(), static_cast<int>(last.bytes.size()), MPI_BYTE, peer, kTag,
                          edge_.handle(), &last.request));
}

bool Mail::is_done(Message& message) {
    int flag = 0;
    MAESTRO_MPI(MPI_Test(&message.request, &flag, MPI_STATUS_IGNORE));
    return flag != 0;
}

bool Mail::all_sent() {
    const std::lock_guard lock(mutex_);
    return sent_.empty();
}

/// By whichever thread drives Progress, one at a time.
bool Mail::take_turn() {
    bool moved = false;
    {
        const std::lock_guard lock(mutex_);
        for (auto m = sent_.begin(); m != sent_.end();) {
            if (!is_done(*m)) {
                ++m;
                continue;
            }
            spare_.push_back(std::move(m->bytes));
            m = sent_.erase(m);
            moved = true;
        }
    }
    while (begin_to_receive()) moved = true;
    for (std::size_t peer = 0; peer < inbox_.size(); ++peer)
        for (auto& messages = inbox_[peer]; !messages.empty() && is_done(messages.front());) {
            deliver_(static_cast<int>(peer), messages.front().bytes);  // in the order of their sending
            const std::lock_guard lock(mutex_);
            spare_.push_back(std::move(messages.front().bytes));
            messages.pop_front();
            moved = true;
        }
    return moved;
}

bool Mail::begin_to_receive() {
    int found = 0, size = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    MAESTRO_MPI(MPI_Improbe(MPI_ANY_SOURCE, kTag, edge_.handle(), &found, &handle, &status));
    if (found == 0) return false;
    MAESTRO_MPI(MPI_Get_count(&status, MPI_BYTE, &size));
    Message& message = inbox_[status.MPI_SOURCE].emplace_back();
    message.bytes = spare();
    message.bytes.resize(static_cast<std::size_t>(size));
    MAESTRO_MPI(MPI_Imrecv(message.bytes.data(), size, MPI_BYTE, &handle, &message.request));
    return true;
}

}  // namespace maestro::transport
