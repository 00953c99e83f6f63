// Rows of an edge between a GPU's memory and the host's. Copies run on streams of their own, beside what is
// computed; what belongs together leaves as one parcel once its copies are done. The slots of a channel order
// the rest: a place is filled again only after it was answered, and an answer leaves after the operations
// that read the place.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "backend/cuda/stream.hpp"
#include "base/check.hpp"
#include "transport/cuda/pinned_mappings.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

namespace {

/// A part of a message that is copied to pinned memory.
struct Piece {
    int peer;
    std::size_t offset;
    const std::byte* staged;
    std::size_t bytes;
};
struct Signal {
    int peer;
    std::size_t offset;
    std::uint64_t word;
};
struct Parcel {
    backend::CudaEvent copied;  ///< all of it, and what was computed before
    std::vector<Piece> pieces;
    std::vector<Signal> signals;
    std::vector<int> peers;     ///< to push to
    std::uint64_t staging = 0;  ///< the ring's memory up to here is free once it has left
};

class GpuTransport final : public Transport {
public:
    GpuTransport(std::unique_ptr<Transport> host, const GpuEnd& end, std::string& refused)
        : host_(std::move(host)),
          end_(end),
          pinned_(*host_, end_.bytes, end_.peers, refused),
          device_rows_(*end_.backends.any(), end_.bytes - end_.words),
          staging_(pinned_.reaches_all() ? 0 : end_.staging) {
        MAESTRO_CUDA_CALL(cudaGetDevice(&device_));
        turn_ = end_.waiter.progress().add([this] { return take_turn(); });
        look_ = end_.waiter.add_look([this] { return under_way(); });
    }
    ~GpuTransport() override {
        if (std::uncaught_exceptions() == 0) {
            try {  // what was pushed last still has to leave
                wait([this] { return parcels_.empty(); });
            } catch (const std::exception&) {
                // the device, or the peers, are gone, which shows elsewhere
            }
        }
        end_.waiter.progress().remove(turn_);
        end_.waiter.remove_look(look_);
        for (const backend::CudaStream* stream : {&down_, &up_})
            cudaStreamSynchronize(*stream);  // it reads and writes the memory
    }

    std::byte* memory() override { return host_->memory(); }
    void serve(End end) override { operations_ = end_.backends.at(end)->stream(); }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        follow_operations();
        if (std::byte* const there = pinned_.reach(peer)) return copy(there + offset, source, bytes);
        for (std::size_t at = 0, part = 0; at < bytes; at += part) {
            MAESTRO_CHECK(staging_.largest() > 0, "edge {}: {} bytes of a rank that sends none", end_.edge,
                          bytes);
            part = std::min(staging_.largest(), bytes - at);
            std::byte* const staged = stage(part);
            copy(staged, static_cast<const std::byte*>(source) + at, part);
            draft().pieces.push_back({peer, offset + at, staged, part});
        }
    }
    void signal(int peer, std::size_t offset, std::uint64_t word) override {
        draft().signals.push_back({peer, offset, word});
    }
    void push(int peer) override { draft().peers.push_back(peer); }
    void depart(bool reuse) override {
        if (draft().peers.empty()) return;
        follow_operations();
        const bool copies = std::exchange(copies_, false);
        following_ = false;
        seal(reuse && copies);
    }
    std::uint64_t load(std::size_t offset) override { return host_->load(offset); }

    void clear(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(on_device(offset), 0, bytes, operations_));
    }
    void fetch(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(on_device(offset), memory() + offset, bytes, cudaMemcpyHostToDevice, up_));
        fetched_.record(up_);
    }
    std::byte* fetched(std::size_t offset) override {
        fetched_.block(operations_);
        return on_device(offset);
    }

private:
    std::byte* on_device(std::size_t offset) const {
        return static_cast<std::byte*>(device_rows_.data()) + (offset - end_.words);
    }
    Parcel& draft() { return draft_.front(); }
    /// Copies of a parcel begin after what was computed so far.
    void follow_operations() {
        if (std::exchange(following_, true)) return;
        computed_.record(operations_);
        computed_.block(down_);
    }
    void copy(std::byte* to, const void* from, std::size_t bytes) {
        MAESTRO_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, down_));
        copies_ = true;
    }
    /// Where everything is taken, what was put so far leaves first, without its words.
    std::byte* stage(std::size_t bytes) {
        {
            const std::lock_guard lock(mutex_);
            if (std::byte* const found = staging_.take(bytes)) return found;
        }
        for (const Piece& piece : draft().pieces)
            if (std::find(draft().peers.begin(), draft().peers.end(), piece.peer) == draft().peers.end())
                draft().peers.push_back(piece.peer);
        std::vector<Signal> later = std::exchange(draft().signals, {});
        if (!draft().pieces.empty()) seal(false);
        draft().signals = std::move(later);
        std::byte* found = nullptr;
        wait([&] { return (found = staging_.take(bytes)) != nullptr; });
        return found;
    }
    /// The draft is whole: it leaves when its event is reached.
    void seal(bool hold) {
        draft().copied.record(down_);
        if (hold) draft().copied.block(operations_);
        const std::lock_guard lock(mutex_);
        draft().staging = staging_.taken();
        parcels_.splice(parcels_.end(), draft_);
        if (spare_.empty()) spare_.emplace_back();
        draft_.splice(draft_.end(), spare_, spare_.begin());
    }
    /// Until ready(), which is asked with the lock held; parcels leave meanwhile.
    template <class Ready>
    void wait(Ready&& ready) {
        end_.waiter.wait_until(
            [&] {
                const std::lock_guard lock(mutex_);
                send_parcels();
                return ready();
            },
            [&] { return fmt::format("the GPU to copy rows of edge {}", end_.edge); });
    }
    /// By whichever thread drives Progress.
    bool take_turn() {
        const std::lock_guard lock(mutex_);
        if (parcels_.empty()) return false;
        MAESTRO_CUDA_CALL(cudaSetDevice(device_));
        send_parcels();
        return true;
    }
    void send_parcels() {
        while (!parcels_.empty() && parcels_.front().copied.reached()) {
            Parcel& parcel = parcels_.front();
            for (const Piece& p : parcel.pieces) host_->put(p.peer, p.offset, p.staged, p.bytes);
            for (const Signal& s : parcel.signals) host_->signal(s.peer, s.offset, s.word);
            for (const int peer : parcel.peers) host_->push(peer);
            staging_.release(parcel.staging);
            parcel.pieces.clear();
            parcel.signals.clear();
            parcel.peers.clear();
            spare_.splice(spare_.end(), parcels_, parcels_.begin());
        }
    }
    std::string under_way() {
        const std::lock_guard lock(mutex_);
        return parcels_.empty() ? "" : fmt::format("the GPU is to copy rows of edge {}", end_.edge);
    }

    std::unique_ptr<Transport> host_;  ///< what it sends, is sent with the lock held
    GpuEnd end_;
    PinnedMappings pinned_;
    backend::Buffer device_rows_;  ///< the memory behind the words once more
    int device_ = 0;
    Stream operations_ = nullptr;  ///< of the end that is served
    backend::CudaStream down_, up_;
    backend::CudaEvent computed_, fetched_;
    std::list<Parcel> draft_{1};  ///< one: what was put since the last departure
    bool following_ = false;      ///< down_ waits for what was computed before the draft
    bool copies_ = false;         ///< the draft has some
    std::mutex mutex_;            ///< of what follows
    PinnedRing staging_;
    std::list<Parcel> parcels_;  ///< in the order of their events
    std::list<Parcel> spare_;
    comm::Progress::Id turn_;
    comm::Waiter::LookId look_;
};

}  // namespace

std::unique_ptr<Transport> make_gpu_transport(std::unique_ptr<Transport> host, const GpuEnd& end,
                                              std::string& refused) {
    return std::make_unique<GpuTransport>(std::move(host), end, refused);
}

}  // namespace maestro::transport
