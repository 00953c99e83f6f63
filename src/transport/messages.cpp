#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "transport/message_endpoint.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

namespace {

constexpr std::size_t kPage = 4096;  // none is another edge's too: CUDA pins whole pages
constexpr std::size_t kLargestMessage = std::size_t{1} << 28;  // counts of MPI are int; and memory on the way

class MessageTransport final : public Transport {
public:
    MessageTransport(comm::Communicator edge, std::size_t bytes)
        : size_(bytes),
          pages_(bytes / kPage + 1),
          outbox_(static_cast<std::size_t>(edge.size())),
          mail_(std::move(edge), [this](int, const Bytes& message) { deliver(message); }) {
        mail_.edge().barrier();
    }

    std::byte* memory() override { return pages_.front().bytes; }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        if (is_own(peer)) {
            std::memcpy(memory() + offset, source, bytes);
            return;
        }
        Draft& draft = outbox_[peer];
        for (std::size_t done = 0; done < bytes;) {
            if (draft.payload.empty()) draft.payload = mail_.spare();
            if (draft.payload.size() >= kLargestMessage) send(peer);
            const std::size_t part = std::min(kLargestMessage - draft.payload.size(), bytes - done);
            const auto* const from = static_cast<const std::byte*>(source) + done;
            draft.payload.insert(draft.payload.end(), from, from + part);
            draft.extents.push_back({offset + done, part});
            done += part;
        }
    }

    void signal(int peer, std::size_t offset, std::uint64_t word) override {
        if (is_own(peer))
            word_at(offset).store(word, std::memory_order_release);
        else
            outbox_[peer].words.push_back({offset, word});
    }

    void push(int peer) override {
        const Draft& draft = outbox_[peer];
        if (!draft.extents.empty() || !draft.words.empty()) send(peer);
    }

    std::uint64_t load(std::size_t offset) override {
        return word_at(offset).load(std::memory_order_acquire);
    }

private:
    struct alignas(kPage) Page {
        std::byte bytes[kPage] = {};
    };
    struct Draft {  // what was put to a peer since the last message to it
        Bytes payload;
        std::vector<Extent> extents;
        std::vector<Word> words;
    };

    bool is_own(int peer) const { return peer == mail_.edge().rank(); }
    std::atomic_ref<std::uint64_t> word_at(std::size_t offset) {
        return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory() + offset));
    }

    void send(int peer) {
        Draft draft = std::exchange(outbox_[peer], {});
        close_message(draft.payload, draft.extents, draft.words);
        mail_.send(peer, std::move(draft.payload));
    }

    void deliver(const Bytes& message) {
        const std::byte* from = message.data();
        const auto check = [&](std::size_t offset, std::size_t bytes) {
            MAESTRO_CHECK(offset + bytes <= size_, "{}: {} bytes at {} of {}", mail_.edge().name(), bytes,
                          offset, size_);
        };
        read_message(
            message,
            [&](const Extent& e) {
                check(e.offset, e.bytes);
                std::memcpy(memory() + e.offset, from, e.bytes);
                from += e.bytes;
            },
            [&](const Word& w) {
                check(w.offset, sizeof w.value);
                word_at(w.offset).store(w.value, std::memory_order_release);
            });
    }

    std::size_t size_;
    std::vector<Page> pages_;
    std::vector<Draft> outbox_;  ///< by peer; the main thread's
    Mail mail_;                  ///< delivers to what stands above
};
}  // namespace

std::unique_ptr<Transport> make_messages(comm::Communicator edge, std::size_t bytes) {
    return std::make_unique<MessageTransport>(std::move(edge), bytes);
}

}  // namespace maestro::transport
