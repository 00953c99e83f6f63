// Ordinary messages between the ranks of an edge, and what stands in them.
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

/// Where rows belong in the memory of the rank that gets them.
struct Extent {
    std::uint64_t offset, bytes;
};
struct Word {
    std::uint64_t offset, value;
};

/// A message is its payload, then its extents, then its words, then their numbers: so that it can be filled
/// while it grows. Adds all behind the payload.
void close_message(Bytes& payload, std::span<const Extent> extents, std::span<const Word> words);

/// Calls on_extent(Extent) and then on_word(Word) for each in their order. The payload is in front.
template <class OnExtent, class OnWord>
void read_message(const Bytes& message, OnExtent&& on_extent, OnWord&& on_word) {
    std::uint64_t counts[2] = {};
    MAESTRO_CHECK(message.size() >= sizeof counts, "a message of {} bytes", message.size());
    const std::byte* const end = message.data() + message.size() - sizeof counts;
    std::memcpy(counts, end, sizeof counts);
    const std::byte* at = end - counts[1] * sizeof(Word) - counts[0] * sizeof(Extent);
    const auto read = [&](std::uint64_t count, auto value, auto&& visit) {
        for (; count > 0; --count, at += sizeof value) {
            std::memcpy(&value, at, sizeof value);
            visit(value);
        }
    };
    read(counts[0], Extent{}, on_extent);
    read(counts[1], Word{}, on_word);
}

/// Sends and takes in messages while the host computes. Owns its communicator, and the messages until they
/// have left.
class Mail {
public:
    /// Of one sender in the order of its sends; by whoever drives Progress, as soon as the mail is there.
    using Deliver = std::function<void(int peer, const Bytes& message)>;

    Mail(comm::Communicator edge, Deliver deliver);
    ~Mail();  ///< what was sent last leaves first, except while an exception flies
    Mail(const Mail&) = delete;
    Mail& operator=(const Mail&) = delete;

    const comm::Communicator& edge() const { return edge_; }
    Bytes spare();                       ///< empty, with the memory of a message that is through
    void send(int peer, Bytes message);  ///< to another rank

private:
    struct Message {
        MPI_Request request = MPI_REQUEST_NULL;
        Bytes bytes;
    };
    bool take_turn();
    bool begin_to_receive();
    bool all_sent();
    static bool is_done(Message& message);

    comm::Communicator edge_;
    Deliver deliver_;
    std::vector<std::deque<Message>> inbox_;  ///< by peer, on their way in; Progress's
    std::mutex mutex_;                        ///< of the two below
    std::deque<Message> sent_;                ///< on their way out
    std::vector<Bytes> spare_;                ///< memory of messages that are through
    comm::Progress::Id turn_;
};

}  // namespace maestro::transport
