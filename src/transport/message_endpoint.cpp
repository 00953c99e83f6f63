#include "transport/message_endpoint.hpp"

#include <algorithm>
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

std::size_t message_bytes(std::size_t payload, std::size_t extents, std::size_t flags) {
    return payload + extents * sizeof(Extent) + flags * sizeof(Flag) + 2 * sizeof(std::uint64_t);
}

void close_message(Bytes& payload, std::span<const Extent> extents, std::span<const Flag> flags) {
    const std::uint64_t counts[] = {extents.size(), flags.size()};
    append(payload, extents.data(), extents.size());
    append(payload, flags.data(), flags.size());
    append(payload, counts, 2);
}

MessageEndpoint::MessageEndpoint(comm::Communicator edge, std::size_t spare_bytes, Deliver deliver)
    : edge_(std::move(edge)),
      spare_bytes_(spare_bytes),
      deliver_(std::move(deliver)),
      inbox_(static_cast<std::size_t>(edge_.size())),
      poll_id_(edge_.waiter().progress().add([this] { return poll(); })) {}

MessageEndpoint::~MessageEndpoint() {
    // MPI reads a message until its send is done, so its memory must not be freed before. After an error the
    // peers may never receive, and the run aborts in any case.
    if (std::uncaught_exceptions() == 0) {
        try {
            edge_.waiter().wait_until([this] { return all_sent(); },
                                      [this] { return "the last messages of " + edge_.name(); });
        } catch (const std::exception&) {
            // The peers are gone, and report that themselves.
        }
    }
    edge_.waiter().progress().remove(poll_id_);
}

std::size_t MessageEndpoint::held_bytes() const {
    const std::lock_guard lock(mutex_);
    return held_bytes_;
}

/// Reuses the smallest finished message that is large enough, unless it is so large that a longer one will
/// need it. A new one has exactly the memory that it needs, because that is what the memory plan counts: a
/// vector that grew by itself would have up to twice as much.
Bytes MessageEndpoint::new_message(std::size_t bytes) {
    constexpr std::size_t kSmall = 4096;
    const std::lock_guard lock(mutex_);
    auto best = spare_.end();
    for (auto at = spare_.begin(); at != spare_.end(); ++at)
        if (at->capacity() >= bytes && at->capacity() <= std::max(kSmall, 2 * bytes) &&
            (best == spare_.end() || at->capacity() < best->capacity()))
            best = at;
    Bytes message;
    if (best != spare_.end()) {
        message = std::move(*best);
        spare_.erase(best);
        message.clear();
        return message;
    }
    // None fits. Spare messages make room for the new one, so that all together stay within the plan.
    while (!spare_.empty() && held_bytes_ + bytes > spare_bytes_) {
        held_bytes_ -= spare_.back().capacity();
        spare_.pop_back();
    }
    message.reserve(bytes);
    held_bytes_ += message.capacity();
    return message;
}

void MessageEndpoint::recycle(Bytes message) {
    const std::lock_guard lock(mutex_);
    if (held_bytes_ <= spare_bytes_)
        spare_.push_back(std::move(message));
    else
        held_bytes_ -= message.capacity();
}

void MessageEndpoint::send(int peer, Bytes message) {
    const std::lock_guard lock(mutex_);
    // One communicator and one tag: MPI then delivers the messages between two ranks in the order of the
    // sends, and a flag never overtakes its rows.
    Message& last = sent_.emplace_back(Message{.bytes = std::move(message)});
    MAESTRO_MPI(MPI_Isend(last.bytes.data(), static_cast<int>(last.bytes.size()), MPI_BYTE, peer, kTag,
                          edge_.handle(), &last.request));
}

bool MessageEndpoint::is_done(Message& message) {
    int flag = 0;
    MAESTRO_MPI(MPI_Test(&message.request, &flag, MPI_STATUS_IGNORE));
    return flag != 0;
}

bool MessageEndpoint::all_sent() {
    const std::lock_guard lock(mutex_);
    return sent_.empty();
}

/// Called by whichever thread drives Progress, one at a time. The lock is held for the sends alone:
/// delivering copies whole micro-batches, and meanwhile the main thread has to be able to send.
bool MessageEndpoint::poll() {
    std::vector<Bytes> finished;
    {
        const std::lock_guard lock(mutex_);
        for (auto m = sent_.begin(); m != sent_.end();) {
            if (!is_done(*m)) {
                ++m;
                continue;
            }
            finished.push_back(std::move(m->bytes));
            m = sent_.erase(m);
        }
    }
    bool moved = !finished.empty();
    for (Bytes& message : finished) recycle(std::move(message));
    while (begin_to_receive()) moved = true;
    // Receives of a peer may complete in any order, but are delivered in the order of the sends: a flag in a
    // later message also announces the rows of earlier ones.
    for (std::size_t peer = 0; peer < inbox_.size(); ++peer)
        for (auto& messages = inbox_[peer]; !messages.empty() && is_done(messages.front());) {
            deliver_(static_cast<int>(peer), messages.front().bytes);
            recycle(std::move(messages.front().bytes));
            messages.pop_front();
            moved = true;
        }
    return moved;
}

bool MessageEndpoint::begin_to_receive() {
    // The size of a message is not known before it arrives, so no receive can be posted in advance. A matched
    // probe takes the message out of MPI's queue: after an ordinary probe, a receive by another thread could
    // get it. The receive itself does not block, because a large message needs several polls of both sides.
    int found = 0, size = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    MAESTRO_MPI(MPI_Improbe(MPI_ANY_SOURCE, kTag, edge_.handle(), &found, &handle, &status));
    if (found == 0) return false;
    MAESTRO_MPI(MPI_Get_count(&status, MPI_BYTE, &size));
    Message& message = inbox_[status.MPI_SOURCE].emplace_back();
    message.bytes = new_message(static_cast<std::size_t>(size));
    message.bytes.resize(static_cast<std::size_t>(size));
    MAESTRO_MPI(MPI_Imrecv(message.bytes.data(), size, MPI_BYTE, &handle, &message.request));
    return true;
}

}  // namespace maestro::transport
