#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "transport/message_endpoint.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

namespace {

constexpr std::size_t kPage = 4096;  // CUDA pins whole pages, and no page may belong to two edges
// A count is an int in MPI. The rest of its range is for extents and flags.
constexpr std::size_t kMaxPayload = std::size_t{1} << 28;

class MessageTransport final : public Transport {
public:
    MessageTransport(comm::Communicator edge, std::size_t bytes, std::size_t message_bytes)
        : size_(bytes),
          pages_(bytes / kPage + 1),
          drafts_(static_cast<std::size_t>(edge.size())),
          endpoint_(std::move(edge), message_bytes, [this](int, const Bytes& message) { deliver(message); }) {
        endpoint_.edge().barrier();
    }

    std::byte* memory() override { return pages_.front().bytes; }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        if (is_self(peer))
            std::memcpy(memory() + offset, source, bytes);
        else
            drafts_[peer].puts.push_back({offset, static_cast<const std::byte*>(source), bytes});
    }

    void signal(int peer, std::size_t offset, std::uint64_t flag) override {
        if (is_self(peer))
            flag_at(offset).store(flag, std::memory_order_release);
        else
            drafts_[peer].flags.push_back({offset, flag});
    }

    // Sources are copied here and not in put(), once the size of the message is known: it gets the memory
    // that it needs, and no more, as the memory plan assumes.
    void flush(int peer) override {
        const Draft draft = std::exchange(drafts_[peer], {});
        if (draft.puts.empty() && draft.flags.empty()) return;
        std::vector<Put> parts;
        std::size_t payload = 0;
        for (const Put& put : draft.puts)
            for (std::size_t done = 0; done < put.bytes;) {
                if (payload == kMaxPayload) {
                    send(peer, parts, {});
                    parts.clear();
                    payload = 0;
                }
                const std::size_t bytes = std::min(kMaxPayload - payload, put.bytes - done);
                parts.push_back({put.offset + done, put.source + done, bytes});
                payload += bytes;
                done += bytes;
            }
        // The flags are in the last message, behind all rows, because messages are delivered in order.
        send(peer, parts, draft.flags);
    }

    // Flags are stored by the thread that receives and loaded by the main thread. Release and acquire make
    // the rows that were written before a flag visible to a thread that has seen the flag. The rows
    // themselves need no lock: until the flag is set, nobody reads them.
    std::uint64_t load(std::size_t offset) override {
        return flag_at(offset).load(std::memory_order_acquire);
    }

private:
    struct alignas(kPage) Page {
        std::byte bytes[kPage] = {};
    };
    struct Put {
        std::size_t offset;
        const std::byte* source;
        std::size_t bytes;
    };
    struct Draft {  ///< puts and signals to a peer since the last flush
        std::vector<Put> puts;
        std::vector<Flag> flags;
    };

    bool is_self(int peer) const { return peer == endpoint_.edge().rank(); }
    std::atomic_ref<std::uint64_t> flag_at(std::size_t offset) {
        return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory() + offset));
    }

    void send(int peer, std::span<const Put> puts, std::span<const Flag> flags) {
        std::size_t payload = 0;
        std::vector<Extent> extents;
        for (const Put& put : puts) {
            extents.push_back({put.offset, put.bytes});
            payload += put.bytes;
        }
        Bytes message = endpoint_.new_message(message_bytes(payload, extents.size(), flags.size()));
        for (const Put& put : puts) message.insert(message.end(), put.source, put.source + put.bytes);
        close_message(message, extents, flags);
        endpoint_.send(peer, std::move(message));
    }

    // Extents before flags, in the order of the message: read_message() visits them so. The offsets come from
    // another process and are checked, since a wrong one would damage memory far from its cause.
    void deliver(const Bytes& message) {
        const std::byte* from = message.data();
        const auto check = [&](std::size_t offset, std::size_t bytes) {
            MAESTRO_CHECK(offset + bytes <= size_, "{}: {} bytes at {} of {}", endpoint_.edge().name(), bytes,
                          offset, size_);
        };
        read_message(
            message,
            [&](const Extent& e) {
                check(e.offset, e.bytes);
                std::memcpy(memory() + e.offset, from, e.bytes);
                from += e.bytes;
            },
            [&](const Flag& flag) {
                check(flag.offset, sizeof flag.value);
                flag_at(flag.offset).store(flag.value, std::memory_order_release);
            });
    }

    std::size_t size_;
    std::vector<Page> pages_;
    std::vector<Draft> drafts_;  ///< by peer; main thread only
    MessageEndpoint endpoint_;   ///< last: its destructor still delivers into the members above
};
}  // namespace

std::unique_ptr<Transport> make_messages(comm::Communicator edge, std::size_t bytes,
                                         std::size_t message_bytes) {
    return std::make_unique<MessageTransport>(std::move(edge), bytes, message_bytes);
}

}  // namespace maestro::transport
