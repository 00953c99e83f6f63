// Two-sided MPI messages between the ranks of an edge, and their format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "comm/check.hpp"
#include "comm/communicator.hpp"
#include "comm/progress.hpp"

namespace maestro::transport {

using Bytes = std::vector<std::byte>;

/// The place of a part of the payload in the receiver's memory.
struct Extent {
    std::uint64_t offset, bytes;
};
struct Flag {
    std::uint64_t offset, value;
};

/// A message consists of its payload, then its extents, its flags, and their two numbers. These are at the
/// end so that the payload can be appended before they are known.
std::size_t message_bytes(std::size_t payload, std::size_t extents, std::size_t flags);
/// Appends what follows the payload.
void close_message(Bytes& payload, std::span<const Extent> extents, std::span<const Flag> flags);

/// Calls on_extent(Extent) for each extent and then on_flag(Flag) for each flag, in their order. The payload
/// is at the start of the message.
template <class OnExtent, class OnFlag>
void read_message(const Bytes& message, OnExtent&& on_extent, OnFlag&& on_flag) {
    std::uint64_t counts[2] = {};
    MAESTRO_CHECK(message.size() >= sizeof counts, "a message of {} bytes", message.size());
    const std::byte* const end = message.data() + message.size() - sizeof counts;
    std::memcpy(counts, end, sizeof counts);
    const std::byte* at = end - counts[1] * sizeof(Flag) - counts[0] * sizeof(Extent);
    const auto read = [&](std::uint64_t count, auto value, auto&& visit) {
        for (; count > 0; --count, at += sizeof value) {
            std::memcpy(&value, at, sizeof value);
            visit(value);
        }
    };
    read(counts[0], Extent{}, on_extent);
    read(counts[1], Flag{}, on_flag);
}

/// Sends and receives messages over a communicator, which it owns, while the host computes. It owns the
/// messages from send() until they have been sent, and received ones until they have been delivered.
class MessageEndpoint {
public:
    /// Called with each message that has arrived, by whichever thread drives Progress; the messages of a peer
    /// come in the order in which it sent them.
    using Deliver = std::function<void(int peer, const Bytes& message)>;

    /// `spare_bytes`: finished messages are kept for reuse while all messages together take no more than
    /// this.
    MessageEndpoint(comm::Communicator edge, std::size_t spare_bytes, Deliver deliver);
    ~MessageEndpoint();  ///< waits until everything has been sent, unless an exception is being handled
    MessageEndpoint(const MessageEndpoint&) = delete;
    MessageEndpoint& operator=(const MessageEndpoint&) = delete;

    const comm::Communicator& edge() const { return edge_; }
    /// An empty message with room for so many bytes, to be filled and sent.
    Bytes new_message(std::size_t bytes);
    void send(int peer, Bytes message);  ///< to another rank
    /// Bytes of memory that messages take at the moment: those in progress and those kept for reuse.
    std::size_t held_bytes() const;

private:
    struct Message {
        MPI_Request request = MPI_REQUEST_NULL;
        Bytes bytes;
    };
    bool poll();
    bool begin_to_receive();
    bool all_sent();
    static bool is_done(Message& message);
    void recycle(Bytes message);

    comm::Communicator edge_;
    const std::size_t spare_bytes_;
    Deliver deliver_;
    std::vector<std::deque<Message>> inbox_;  ///< receives in progress, by peer; used by Progress's thread
    mutable std::mutex mutex_;                ///< guards the three members below
    std::deque<Message> sent_;                ///< sends in progress
    std::vector<Bytes> spare_;                ///< finished messages
    std::size_t held_bytes_ = 0;              ///< capacity of all messages
    comm::Progress::Id poll_id_;
};

}  // namespace maestro::transport
