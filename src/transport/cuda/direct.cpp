// Rows of an edge from one GPU's memory to another's; words by messages of the host. What is put to a peer
// until it departs is a letter: its rows are sent once the device has computed them, and a message with the
// words says where they belong. Who gets it posts the receive, straight into the rows, before anybody sees
// the words; what computes then waits for the device's receive. The slots of a channel order the rest: a
// place is filled again only after it was answered, and an answer leaves after the operations that read the
// place.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "backend/cuda/stream.hpp"
#include "base/check.hpp"
#include "transport/link.hpp"
#include "transport/message_endpoint.hpp"
#include "transport/ring_buffer.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

namespace {

constexpr std::size_t kSpareBytes = std::size_t{1} << 20;  ///< messages hold words and no rows

struct Letter {
    int peer = 0;
    bool pushed = false;
    std::vector<Run> runs;
    std::vector<Extent> extents;  ///< of the runs, in the peer's memory
    std::vector<Word> words;
    backend::CudaEvent ready;  ///< it may leave: the device has computed what it tells
    backend::CudaEvent sent;   ///< the rows
    bool posted = false, left = false;
    std::uint64_t staging = 0;  ///< the ring's memory up to here is free once it is through

    void add(std::size_t offset, std::byte* data, std::size_t bytes) {
        if (!runs.empty() && runs.back().data + runs.back().bytes == data &&
            extents.back().offset + extents.back().bytes == offset) {
            runs.back().bytes += bytes;
            extents.back().bytes += bytes;
            return;
        }
        runs.push_back({data, bytes});
        extents.push_back({offset, bytes});
    }
    bool through() const { return left && (runs.empty() || sent.reached()); }
    void clear() {
        pushed = posted = left = false;
        runs.clear();
        extents.clear();
        words.clear();
    }
};

/// A message that has come.
struct Arrival {
    std::vector<Run> runs;  ///< where its rows belong
    std::vector<Word> words;
    bool posted = false;
};

/// What goes to and comes from a peer, in the order of its letters.
struct Lane {
    Link* out = nullptr;  ///< null where no rows go
    Link* in = nullptr;   ///< null where none come
    std::deque<Letter*> outbox;
    std::deque<Arrival> inbox;
    backend::CudaEvent received;  ///< what came last and was announced
};

class DirectTransport final : public Transport {
public:
    DirectTransport(comm::Communicator edge, DirectEnd end)
        : end_(std::move(end)),
          waiter_(edge.waiter()),
          own_(edge.rank()),
          words_(end_.words / sizeof(std::uint64_t), 0),
          device_rows_(*end_.backends.any(), end_.bytes - end_.words),
          staging_(end_.staging, *end_.backends.any()),
          lanes_(static_cast<std::size_t>(edge.size())),
          links_(end_.by_nccl ? open_nccl_links(edge, end_) : open_mpi_links(edge, end_)),
          mail_(std::move(edge), kSpareBytes,
                [this](int peer, const Bytes& message) { deliver(peer, message); }) {
        MAESTRO_CUDA_CALL(cudaGetDevice(&device_));
        for (const auto& link : links_)
            (link->outward() ? lane(link->peer()).out : lane(link->peer()).in) = link.get();
        turn_ = waiter_.progress().add([this] { return take_turn(); });
        look_ = waiter_.add_look([this] { return under_way(); });
        mail_.edge().barrier();
    }
    ~DirectTransport() override {
        if (std::uncaught_exceptions() == 0) {
            try {  // what was pushed last still has to leave
                wait([this] { return letters_.empty(); });
            } catch (const std::exception&) {
                // the device, or the peers, are gone, which shows elsewhere
            }
        }
        waiter_.progress().remove(turn_);
        waiter_.remove_look(look_);
    }

    std::byte* memory() override { return reinterpret_cast<std::byte*>(words_.data()); }
    void serve(End end) override { operations_ = end_.backends.at(end)->stream(); }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        auto* const from = static_cast<std::byte*>(const_cast<void*>(source));  // runs go either way
        if (peer == own_) return copy(on_device(offset), from, bytes);
        MAESTRO_CHECK(lane(peer).out != nullptr, "edge {}: {} bytes to rank {}, which gets none", end_.edge,
                      bytes, peer);
        draft(peer).add(offset, from, bytes);
    }
    void signal(int peer, std::size_t offset, std::uint64_t word) override {
        draft(peer).words.push_back({offset, word});
    }
    void push(int peer) override { draft(peer).pushed = true; }
    void depart(bool reuse) override {
        std::list<Letter> one;
        for (auto at = drafts_.begin(); at != drafts_.end();) {
            const auto letter = at++;
            if (!letter->pushed) continue;
            one.splice(one.end(), drafts_, letter);
            if (reuse && !letter->runs.empty()) copy_aside(one);
            seal(one);
        }
    }
    std::uint64_t load(std::size_t offset) override {
        return word_at(offset).load(std::memory_order_acquire);
    }

    void clear(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(on_device(offset), 0, bytes, operations_));
    }
    /// Waits for the last receive from each peer: later ones than were asked for are under way as well.
    std::byte* fetched(std::size_t offset) override {
        const std::lock_guard lock(mutex_);
        for (const Lane& each : lanes_)
            if (each.in) each.received.block(operations_);
        return on_device(offset);
    }

private:
    Lane& lane(int peer) { return lanes_[static_cast<std::size_t>(peer)]; }
    std::byte* on_device(std::size_t offset) const {
        MAESTRO_CHECK(offset >= end_.words && offset <= end_.bytes, "edge {}: rows at {} of {}", end_.edge,
                      offset, end_.bytes);
        return static_cast<std::byte*>(device_rows_.data()) + (offset - end_.words);
    }
    std::atomic_ref<std::uint64_t> word_at(std::size_t offset) {
        return std::atomic_ref<std::uint64_t>(words_.at(offset / sizeof(std::uint64_t)));
    }
    void store(const std::vector<Word>& words) {
        for (const Word& word : words) word_at(word.offset).store(word.value, std::memory_order_release);
    }
    /// In the order of what is computed.
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
        MAESTRO_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, operations_));
    }

    // Letters until they have departed: the main thread's.
    std::list<Letter> new_letter(int peer) {
        std::list<Letter> one;
        {
            const std::lock_guard lock(mutex_);
            if (!spare_.empty()) one.splice(one.end(), spare_, spare_.begin());
        }
        if (one.empty()) one.emplace_back();
        one.front().peer = peer;
        return one;
    }
    Letter& draft(int peer) {
        const auto found = std::find_if(drafts_.begin(), drafts_.end(),
                                        [&](const Letter& letter) { return letter.peer == peer; });
        if (found != drafts_.end()) return *found;
        drafts_.splice(drafts_.end(), new_letter(peer));
        return drafts_.back();
    }
    /// Its rows go to memory where nobody writes before they are sent: what computes goes on without the
    /// peer. Where that is full, what it holds leaves first, without the words.
    void copy_aside(std::list<Letter>& one) {
        Letter& letter = one.front();
        const std::vector<Run> runs = std::exchange(letter.runs, {});
        const std::vector<Extent> extents = std::exchange(letter.extents, {});
        std::list<Letter> part = new_letter(letter.peer);
        for (std::size_t i = 0; i < runs.size(); ++i)
            for (std::size_t at = 0, bytes = 0; at < runs[i].bytes; at += bytes) {
                MAESTRO_CHECK(staging_.largest() > 0, "edge {}: {} bytes of a rank that sends none",
                              end_.edge, runs[i].bytes);
                bytes = std::min(staging_.largest(), runs[i].bytes - at);
                std::byte* const place = stage(bytes, part);
                copy(place, runs[i].data + at, bytes);
                part.front().add(extents[i].offset + at, place, bytes);
            }
        part.front().words.swap(letter.words);
        one.swap(part);
        recycle(part);
    }
    std::byte* stage(std::size_t bytes, std::list<Letter>& part) {
        {
            const std::lock_guard lock(mutex_);
            if (std::byte* const place = staging_.take(bytes)) return place;
        }
        if (!part.front().runs.empty()) {
            const int peer = part.front().peer;
            seal(part);
            part = new_letter(peer);
        }
        std::byte* place = nullptr;
        wait([&] { return (place = staging_.take(bytes)) != nullptr; });
        return place;
    }
    /// It is whole, and leaves when its event is reached.
    void seal(std::list<Letter>& one) {
        Letter& letter = one.front();
        letter.ready.record(operations_);
        const std::lock_guard lock(mutex_);
        letter.staging = staging_.taken();
        lane(letter.peer).outbox.push_back(&letter);
        letters_.splice(letters_.end(), one);
    }
    void recycle(std::list<Letter>& one) {
        one.front().clear();
        const std::lock_guard lock(mutex_);
        spare_.splice(spare_.end(), one);
    }

    /// Until ready(), which is asked with the lock held; letters leave meanwhile.
    template <class Ready>
    void wait(Ready&& ready) {
        waiter_.wait_until(
            [&] {
                const std::lock_guard lock(mutex_);
                advance();
                return ready();
            },
            [&] { return fmt::format("rows of edge {} to leave the GPU", end_.edge); });
    }
    /// By whichever thread drives Progress.
    bool take_turn() {
        const std::lock_guard lock(mutex_);
        const bool waits =
            std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return !l.inbox.empty(); });
        if (letters_.empty() && !waits) return false;
        MAESTRO_CUDA_CALL(cudaSetDevice(device_));
        advance();
        return true;
    }
    void advance() {
        for (Lane& each : lanes_) {
            while (!each.outbox.empty() && leave(each)) each.outbox.pop_front();
            while (!each.inbox.empty() && take_in(each)) each.inbox.pop_front();
        }
        while (!letters_.empty() && letters_.front().through()) {
            staging_.release(letters_.front().staging);
            letters_.front().clear();
            spare_.splice(spare_.end(), letters_, letters_.begin());
        }
    }
    /// True once the first letter is out of the host's hands.
    bool leave(Lane& to) {
        Letter& letter = *to.outbox.front();
        if (!letter.posted) {
            if (!letter.ready.reached()) return false;
            send(letter, to);
            letter.posted = true;
        }
        if (!letter.runs.empty()) {
            if (!to.out->settled()) return false;
            to.out->mark(letter.sent);
        }
        return letter.left = true;
    }
    void send(const Letter& letter, Lane& to) {
        if (letter.peer == own_) return store(letter.words);
        if (!letter.runs.empty()) to.out->post(letter.runs);
        Bytes message = mail_.new_message(message_bytes(0, letter.extents.size(), letter.words.size()));
        close_message(message, letter.extents, letter.words);
        mail_.send(letter.peer, std::move(message));
    }
    /// A message of a peer's, by whoever drives Progress.
    void deliver(int peer, const Bytes& message) {
        MAESTRO_CUDA_CALL(cudaSetDevice(device_));
        const std::lock_guard lock(mutex_);
        Lane& from = lane(peer);
        Arrival& arrival = from.inbox.emplace_back();
        read_message(
            message,
            [&](const Extent& e) {
                MAESTRO_CHECK(from.in && e.offset + e.bytes <= end_.bytes, "edge {}: {} bytes at {} of {}",
                              end_.edge, e.bytes, e.offset, end_.bytes);
                arrival.runs.push_back({on_device(e.offset), e.bytes});
            },
            [&](const Word& w) { arrival.words.push_back(w); });
        while (!from.inbox.empty() && take_in(from)) from.inbox.pop_front();
    }
    /// True once the first arrival's words can be seen.
    bool take_in(Lane& from) {
        Arrival& arrival = from.inbox.front();
        if (!arrival.runs.empty()) {
            if (!std::exchange(arrival.posted, true)) from.in->post(arrival.runs);
            if (!from.in->settled()) return false;
            from.in->mark(from.received);
        }
        store(arrival.words);
        return true;
    }
    std::string under_way() {
        const std::lock_guard lock(mutex_);
        for (const auto& link : links_) link->settled();
        return letters_.empty() ? "" : fmt::format("the GPU is to send rows of edge {}", end_.edge);
    }

    DirectEnd end_;
    comm::Waiter& waiter_;
    int own_;
    std::vector<std::uint64_t> words_;
    backend::Buffer device_rows_;  ///< the memory behind the words
    int device_ = 0;
    Stream operations_ = nullptr;  ///< of the end that is served
    std::list<Letter> drafts_;     ///< what was put since the last departure, by peer
    std::mutex mutex_;             ///< of what follows
    Ring<backend::Buffer> staging_;
    std::list<Letter> letters_;  ///< as they departed
    std::list<Letter> spare_;
    std::vector<Lane> lanes_;  ///< by peer
    Links links_;              ///< go before the memory that they send and fill
    comm::Progress::Id turn_;
    comm::Waiter::LookId look_;
    MessageEndpoint mail_;  ///< delivers to what stands above
};

}  // namespace

std::unique_ptr<Transport> make_direct_transport(comm::Communicator edge, DirectEnd end) {
    return std::make_unique<DirectTransport>(std::move(edge), std::move(end));
}

}  // namespace maestro::transport
