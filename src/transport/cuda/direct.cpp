// Sends rows from one GPU's memory to another's, and flags by messages between the hosts. Everything that is
// put to a peer before submit() is one send request: its rows are sent once the device has computed them, and
// a message with the flags says where they belong. The receiver posts the receive, straight into the rows,
// and sets the flags when they have arrived. The slots of a
// channel keep the order of everything else: a slot is filled again only after it was acknowledged, and the
// acknowledgement is sent after the operations that read the slot.
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

constexpr std::size_t kSpareBytes = std::size_t{1} << 20;  ///< messages hold flags and no rows

struct SendRequest {
    int peer = 0;
    bool flushed = false;
    std::vector<Run> runs;
    std::vector<Extent> extents;  ///< of the runs, in the peer's memory
    std::vector<Flag> flags;
    backend::CudaEvent ready;  ///< the device has computed the rows
    bool posted = false;
    bool sent = false;
    std::uint64_t staging = 0;  ///< position in the staging ring up to which memory is free afterwards

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
    void clear() {
        flushed = posted = sent = false;
        runs.clear();
        extents.clear();
        flags.clear();
    }
};

/// A message that has arrived.
struct ReceiveRequest {
    std::vector<Run> runs;  ///< the place of its rows
    std::vector<Flag> flags;
    bool posted = false;
};

/// The requests to and from a peer, in their order.
struct PeerQueue {
    Link* out = nullptr;  ///< null if no rows are sent to it
    Link* in = nullptr;   ///< null if no rows are received from it
    std::deque<SendRequest*> outbox;
    std::deque<ReceiveRequest> inbox;
};

class DirectTransport final : public Transport {
public:
    DirectTransport(comm::Communicator edge, DirectEnd end)
        : end_(std::move(end)),
          waiter_(edge.waiter()),
          self_(edge.rank()),
          flags_(end_.flag_bytes / sizeof(std::uint64_t), 0),
          device_rows_(*end_.backends.any(), end_.bytes - end_.flag_bytes),
          staging_(end_.staging, *end_.backends.any()),
          queues_(static_cast<std::size_t>(edge.size())),
          links_(open_mpi_links(edge, end_)),
          endpoint_(std::move(edge), kSpareBytes,
                    [this](int peer, const Bytes& message) { deliver(peer, message); }) {
        MAESTRO_CUDA_CALL(cudaGetDevice(&device_));
        for (const auto& link : links_)
            (link->outgoing() ? queue(link->peer()).out : queue(link->peer()).in) = link.get();
        poll_id_ = waiter_.progress().add([this] { return poll(); });
        diagnostic_id_ = waiter_.add_diagnostic([this] { return describe_pending(); });
        endpoint_.edge().barrier();
    }
    ~DirectTransport() override {
        if (std::uncaught_exceptions() == 0) {
            try {  // the last requests still have to be sent
                wait([this] { return requests_.empty(); });
            } catch (const std::exception&) {
                // The device or the peers are gone, and that is reported elsewhere.
            }
        }
        waiter_.progress().remove(poll_id_);
        waiter_.remove_diagnostic(diagnostic_id_);
    }

    std::byte* memory() override { return reinterpret_cast<std::byte*>(flags_.data()); }
    void set_end(End end) override { operations_ = end_.backends.at(end)->stream(); }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        // Only read: a Run is not const because it also says where rows are received.
        auto* const from = static_cast<std::byte*>(const_cast<void*>(source));
        if (peer == self_) return copy(on_device(offset), from, bytes);
        MAESTRO_CHECK(queue(peer).out != nullptr, "edge {}: {} bytes to rank {}, to which no rows are sent",
                      end_.edge, bytes, peer);
        draft(peer).add(offset, from, bytes);
    }
    void signal(int peer, std::size_t offset, std::uint64_t flag) override {
        draft(peer).flags.push_back({offset, flag});
    }
    void flush(int peer) override { draft(peer).flushed = true; }
    void submit(bool reuse) override {
        std::list<SendRequest> one;
        for (auto at = drafts_.begin(); at != drafts_.end();) {
            const auto request = at++;
            if (!request->flushed) continue;
            one.splice(one.end(), drafts_, request);
            if (reuse && !request->runs.empty()) copy_to_staging(one);
            seal(one);
        }
    }
    std::uint64_t load(std::size_t offset) override {
        return flag_at(offset).load(std::memory_order_acquire);
    }

    void zero(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(on_device(offset), 0, bytes, operations_));
    }
    std::byte* rows_at(std::size_t offset) override { return on_device(offset); }

private:
    PeerQueue& queue(int peer) { return queues_[static_cast<std::size_t>(peer)]; }
    std::byte* on_device(std::size_t offset) const {
        MAESTRO_CHECK(offset >= end_.flag_bytes && offset <= end_.bytes, "edge {}: rows at {} of {}",
                      end_.edge, offset, end_.bytes);
        return static_cast<std::byte*>(device_rows_.data()) + (offset - end_.flag_bytes);
    }
    std::atomic_ref<std::uint64_t> flag_at(std::size_t offset) {
        return std::atomic_ref<std::uint64_t>(flags_.at(offset / sizeof(std::uint64_t)));
    }
    void store(const std::vector<Flag>& flags) {
        for (const Flag& flag : flags) flag_at(flag.offset).store(flag.value, std::memory_order_release);
    }
    /// In the stream of the operations.
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
        MAESTRO_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, operations_));
    }

    // Requests that have not been submitted belong to the main thread and need no lock.
    std::list<SendRequest> new_request(int peer) {
        std::list<SendRequest> one;
        {
            const std::lock_guard lock(mutex_);
            if (!spare_.empty()) one.splice(one.end(), spare_, spare_.begin());
        }
        if (one.empty()) one.emplace_back();
        one.front().peer = peer;
        return one;
    }
    SendRequest& draft(int peer) {
        const auto found = std::find_if(drafts_.begin(), drafts_.end(),
                                        [&](const SendRequest& request) { return request.peer == peer; });
        if (found != drafts_.end()) return *found;
        drafts_.splice(drafts_.end(), new_request(peer));
        return drafts_.back();
    }
    /// Copies its rows to staging memory, so that later operations may overwrite them without waiting for the
    /// peer. If the staging memory is full, the rows copied so far are sent first, without the flags.
    void copy_to_staging(std::list<SendRequest>& one) {
        SendRequest& request = one.front();
        const std::vector<Run> runs = std::exchange(request.runs, {});
        const std::vector<Extent> extents = std::exchange(request.extents, {});
        std::list<SendRequest> part = new_request(request.peer);
        for (std::size_t i = 0; i < runs.size(); ++i)
            for (std::size_t at = 0, bytes = 0; at < runs[i].bytes; at += bytes) {
                MAESTRO_CHECK(staging_.largest() > 0, "edge {}: {} bytes of a rank that sends no rows",
                              end_.edge, runs[i].bytes);
                bytes = std::min(staging_.largest(), runs[i].bytes - at);
                std::byte* const place = stage(bytes, part);
                copy(place, runs[i].data + at, bytes);
                part.front().add(extents[i].offset + at, place, bytes);
            }
        part.front().flags.swap(request.flags);
        one.swap(part);
        recycle(part);
    }
    std::byte* stage(std::size_t bytes, std::list<SendRequest>& part) {
        {
            const std::lock_guard lock(mutex_);
            if (std::byte* const place = staging_.allocate(bytes)) return place;
        }
        if (!part.front().runs.empty()) {
            const int peer = part.front().peer;
            seal(part);
            part = new_request(peer);
        }
        std::byte* place = nullptr;
        wait([&] { return (place = staging_.allocate(bytes)) != nullptr; });
        return place;
    }
    /// Completes the request; it is sent when its event is reached.
    void seal(std::list<SendRequest>& one) {
        SendRequest& request = one.front();
        request.ready.record(operations_);
        {
            const std::lock_guard lock(mutex_);
            // The ring is released in the order of submission, in which it was allocated too.
            request.staging = staging_.position();
            queue(request.peer).outbox.push_back(&request);
            requests_.splice(requests_.end(), one);
        }
        waiter_.progress().wake();
    }
    void recycle(std::list<SendRequest>& one) {
        one.front().clear();
        const std::lock_guard lock(mutex_);
        spare_.splice(spare_.end(), one);
    }

    /// Waits until ready(), which is called with the lock held, and sends requests meanwhile.
    template <class Ready>
    void wait(Ready&& ready) {
        waiter_.wait_until(
            [&] {
                const std::lock_guard lock(mutex_);
                advance();
                return ready();
            },
            [&] { return fmt::format("the GPU to send rows of edge {}", end_.edge); });
    }
    /// Called by whichever thread drives Progress.
    bool poll() {
        const std::lock_guard lock(mutex_);
        const bool waits =
            std::any_of(queues_.begin(), queues_.end(), [](const PeerQueue& l) { return !l.inbox.empty(); });
        if (requests_.empty() && !waits) return false;
        MAESTRO_CUDA_CALL(cudaSetDevice(device_));
        advance();
        return true;
    }
    void advance() {
        for (PeerQueue& each : queues_) {
            while (!each.outbox.empty() && advance_send(each)) each.outbox.pop_front();
            while (!each.inbox.empty() && advance_receive(each)) each.inbox.pop_front();
        }
        while (!requests_.empty() && requests_.front().sent) {
            staging_.release(requests_.front().staging);
            requests_.front().clear();
            spare_.splice(spare_.end(), requests_, requests_.begin());
        }
    }
    /// Returns true once the first request has been sent.
    bool advance_send(PeerQueue& to) {
        SendRequest& request = *to.outbox.front();
        if (!request.posted) {
            if (!request.ready.reached()) return false;
            send(request, to);
            request.posted = true;
        }
        if (!request.runs.empty() && !to.out->ready()) return false;
        return request.sent = true;
    }
    void send(const SendRequest& request, PeerQueue& to) {
        if (request.peer == self_) return store(request.flags);
        // Rows of one link arrive in the order of their messages, so a message does not have to name its
        // send.
        if (!request.runs.empty()) to.out->post(request.runs);
        Bytes message = endpoint_.new_message(message_bytes(0, request.extents.size(), request.flags.size()));
        close_message(message, request.extents, request.flags);
        endpoint_.send(request.peer, std::move(message));
    }
    /// Takes a message of a peer; called by whichever thread drives Progress.
    void deliver(int peer, const Bytes& message) {
        MAESTRO_CUDA_CALL(cudaSetDevice(device_));
        const std::lock_guard lock(mutex_);
        PeerQueue& from = queue(peer);
        ReceiveRequest& incoming = from.inbox.emplace_back();
        read_message(
            message,
            [&](const Extent& e) {
                MAESTRO_CHECK(from.in && e.offset + e.bytes <= end_.bytes, "edge {}: {} bytes at {} of {}",
                              end_.edge, e.bytes, e.offset, end_.bytes);
                incoming.runs.push_back({on_device(e.offset), e.bytes});
            },
            [&](const Flag& flag) { incoming.flags.push_back(flag); });
        while (!from.inbox.empty() && advance_receive(from)) from.inbox.pop_front();
    }
    /// Returns true once the flags of the first receive request have been set.
    bool advance_receive(PeerQueue& from) {
        ReceiveRequest& incoming = from.inbox.front();
        if (!incoming.runs.empty()) {
            if (!std::exchange(incoming.posted, true)) from.in->post(incoming.runs);
            if (!from.in->ready()) return false;
        }
        store(incoming.flags);
        return true;
    }
    std::string describe_pending() {
        const std::lock_guard lock(mutex_);
        for (const auto& link : links_) link->ready();  // throws if one has failed
        return requests_.empty() ? "" : fmt::format("the GPU is to send rows of edge {}", end_.edge);
    }

    DirectEnd end_;
    comm::Waiter& waiter_;
    int self_;
    std::vector<std::uint64_t> flags_;
    backend::Buffer device_rows_;  ///< the memory behind the flags
    int device_ = 0;
    Stream operations_ = nullptr;    ///< of the end that is set
    std::list<SendRequest> drafts_;  ///< not yet submitted, by peer
    std::mutex mutex_;               ///< guards what follows
    RingBuffer<backend::Buffer> staging_;
    std::list<SendRequest> requests_;  ///< in the order of submission
    std::list<SendRequest> spare_;
    std::vector<PeerQueue> queues_;  ///< by peer
    Links links_;                    ///< destroyed before the memory that they read and write
    comm::Progress::Id poll_id_;
    comm::Waiter::DiagnosticId diagnostic_id_;
    MessageEndpoint endpoint_;  ///< last: it delivers into the members above
};

}  // namespace

std::unique_ptr<Transport> make_direct_transport(comm::Communicator edge, DirectEnd end) {
    return std::make_unique<DirectTransport>(std::move(edge), std::move(end));
}

}  // namespace maestro::transport
