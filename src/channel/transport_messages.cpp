#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <vector>

#include "base/check.hpp"
#include "channel/transport.hpp"
#include "comm/check.hpp"
#include "comm/progress.hpp"

namespace maestro::channel {

namespace {

constexpr int kTag = 2;
constexpr std::size_t kPage = 4096;  // none is another edge's too: CUDA pins whole pages
constexpr std::size_t kLargestMessage = std::size_t{1} << 28;  // counts of MPI are int; and memory on the way

using Bytes = std::vector<std::byte>;

/// Where a piece of a message belongs. A message is its payload, then its pieces, then its words, then the
/// Tail: so that it can be filled while it grows.
struct Piece {
    std::uint64_t offset, bytes;
};
struct Word {
    std::uint64_t offset, value;
};
struct Tail {
    std::uint64_t pieces, words;
};

template <class T>
void append(Bytes& to, const T* values, std::size_t count) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values);
    to.insert(to.end(), bytes, bytes + count * sizeof(T));
}

class MessageTransport final : public Transport {
public:
    MessageTransport(comm::Communicator edge, std::size_t bytes)
        : edge_(std::move(edge)),
          size_(bytes),
          pages_(bytes / kPage + 1),
          outbox_(static_cast<std::size_t>(edge_.size())),
          inbox_(static_cast<std::size_t>(edge_.size())) {
        turn_ = edge_.waiter().progress().add([this] { return take_turn(); });
        edge_.barrier();
    }

    ~MessageTransport() override {
        comm::Progress& progress = edge_.waiter().progress();
        if (std::uncaught_exceptions() == 0) {
            try {  // what was pushed last still has to leave
                edge_.waiter().wait_until([this] { return all_sent(); },
                                          [this] { return "the last messages of " + edge_.name(); });
            } catch (const std::exception&) {
                // the peers are gone, and say so themselves
            }
        }
        progress.remove(turn_);
    }
    MessageTransport(const MessageTransport&) = delete;
    MessageTransport& operator=(const MessageTransport&) = delete;

    std::byte* memory() override { return pages_.front().bytes; }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        if (peer == edge_.rank()) {
            std::memcpy(memory() + offset, source, bytes);
            return;
        }
        Draft& draft = outbox_[peer];
        for (std::size_t done = 0; done < bytes;) {
            if (draft.payload.empty()) draft.payload = spare_bytes();
            if (draft.payload.size() >= kLargestMessage) send(peer);
            const std::size_t part = std::min(kLargestMessage - draft.payload.size(), bytes - done);
            append(draft.payload, static_cast<const std::byte*>(source) + done, part);
            draft.pieces.push_back({offset + done, part});
            done += part;
        }
    }

    void signal(int peer, std::size_t offset, std::uint64_t word) override {
        if (peer == edge_.rank())
            word_at(offset).store(word, std::memory_order_release);
        else
            outbox_[peer].words.push_back({offset, word});
    }

    void push(int peer) override {
        const Draft& draft = outbox_[peer];
        if (!draft.pieces.empty() || !draft.words.empty()) send(peer);
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
        std::vector<Piece> pieces;
        std::vector<Word> words;
    };
    struct Message {
        MPI_Request request = MPI_REQUEST_NULL;
        Bytes bytes;
    };

    std::atomic_ref<std::uint64_t> word_at(std::size_t offset) {
        return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory() + offset));
    }

    Bytes spare_bytes() {
        const std::lock_guard lock(mutex_);
        if (spare_.empty()) return {};
        Bytes bytes = std::move(spare_.back());
        spare_.pop_back();
        bytes.clear();
        return bytes;
    }

    /// Main thread: hands the draft to MPI as one message. MPI keeps the order of messages between two ranks.
    void send(int peer) {
        Draft& draft = outbox_[peer];
        Message message{.bytes = std::move(draft.payload)};
        const Tail tail{draft.pieces.size(), draft.words.size()};
        append(message.bytes, draft.pieces.data(), draft.pieces.size());
        append(message.bytes, draft.words.data(), draft.words.size());
        append(message.bytes, &tail, 1);
        draft = {};
        const std::lock_guard lock(mutex_);
        sent_.push_back(std::move(message));
        Message& last = sent_.back();
        MAESTRO_MPI(MPI_Isend(last.bytes.data(), static_cast<int>(last.bytes.size()), MPI_BYTE, peer, kTag,
                              edge_.handle(), &last.request));
    }

    static bool is_done(Message& message) {
        int flag = 0;
        MAESTRO_MPI(MPI_Test(&message.request, &flag, MPI_STATUS_IGNORE));
        return flag != 0;
    }

    bool all_sent() {
        const std::lock_guard lock(mutex_);
        return sent_.empty();
    }

    /// By whichever thread drives Progress, one at a time.
    bool take_turn() {
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
        for (auto& messages : inbox_)
            while (!messages.empty() && is_done(messages.front())) {  // in the order of their sending
                deliver(messages.front().bytes);
                const std::lock_guard lock(mutex_);
                spare_.push_back(std::move(messages.front().bytes));
                messages.pop_front();
                moved = true;
            }
        return moved;
    }

    bool begin_to_receive() {
        int found = 0, size = 0;
        MPI_Message handle = MPI_MESSAGE_NULL;
        MPI_Status status;
        MAESTRO_MPI(MPI_Improbe(MPI_ANY_SOURCE, kTag, edge_.handle(), &found, &handle, &status));
        if (found == 0) return false;
        MAESTRO_MPI(MPI_Get_count(&status, MPI_BYTE, &size));
        Message& message = inbox_[status.MPI_SOURCE].emplace_back();
        message.bytes = spare_bytes();
        message.bytes.resize(static_cast<std::size_t>(size));
        MAESTRO_MPI(MPI_Imrecv(message.bytes.data(), size, MPI_BYTE, &handle, &message.request));
        return true;
    }

    void deliver(const Bytes& bytes) {
        Tail tail{};
        MAESTRO_CHECK(bytes.size() >= sizeof tail, "{}: a message of {} bytes", edge_.name(), bytes.size());
        const std::byte* end = bytes.data() + bytes.size() - sizeof tail;
        std::memcpy(&tail, end, sizeof tail);
        const std::byte* word = end - tail.words * sizeof(Word);
        const std::byte* piece = word - tail.pieces * sizeof(Piece);
        const std::byte* from = bytes.data();
        for (; piece < word; piece += sizeof(Piece)) {
            Piece p{};
            std::memcpy(&p, piece, sizeof p);
            MAESTRO_CHECK(p.offset + p.bytes <= size_, "{}: {} bytes at {} of {}", edge_.name(), p.bytes,
                          p.offset, size_);
            std::memcpy(memory() + p.offset, from, p.bytes);
            from += p.bytes;
        }
        for (; word < end; word += sizeof(Word)) {
            Word w{};
            std::memcpy(&w, word, sizeof w);
            MAESTRO_CHECK(w.offset + sizeof w.value <= size_, "{}: a word at {} of {}", edge_.name(),
                          w.offset, size_);
            word_at(w.offset).store(w.value, std::memory_order_release);
        }
    }

    comm::Communicator edge_;
    std::size_t size_;
    std::vector<Page> pages_;
    std::vector<Draft> outbox_;               ///< by peer; the main thread's
    std::vector<std::deque<Message>> inbox_;  ///< by peer, on their way in; Progress's
    std::mutex mutex_;                        ///< of the two below
    std::deque<Message> sent_;                ///< on their way out
    std::vector<Bytes> spare_;                ///< memory of messages that are through
    comm::Progress::Id turn_;
};
}  // namespace

std::unique_ptr<Transport> make_messages(comm::Communicator edge, std::size_t bytes) {
    return std::make_unique<MessageTransport>(std::move(edge), bytes);
}

}  // namespace maestro::channel
