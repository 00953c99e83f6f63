// Copies the rows of an edge between a GPU's memory and the host's. Copies run on dedicated streams, beside
// the kernels; what is submitted together is sent as one batch once its copies are done. The slots of a
// channel keep the order of everything else: a slot is filled again only after it was acknowledged, and the
// acknowledgement is sent after the operations that read the slot.
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
struct StagedCopy {
    int peer;
    std::size_t offset;
    const std::byte* memory;
    std::size_t bytes;
};
struct Signal {
    int peer;
    std::size_t offset;
    std::uint64_t flag;
};
struct CopyBatch {
    backend::CudaEvent copied;  ///< all copies are done, and so is everything that was computed before
    std::vector<StagedCopy> staged;
    std::vector<Signal> signals;
    std::vector<int> peers;     ///< to flush to
    std::uint64_t staging = 0;  ///< position in the staging ring up to which memory is free afterwards
};

class GpuTransport final : public Transport {
public:
    GpuTransport(std::unique_ptr<Transport> host, const GpuEnd& end, std::string& refused)
        : host_(std::move(host)),
          end_(end),
          pinned_(*host_, end_.bytes, end_.peers, refused),
          device_rows_(*end_.backends.any(), end_.bytes - end_.flag_bytes),
          staging_(pinned_.reaches_all() ? 0 : end_.staging) {
        MAESTRO_CUDA_CALL(cudaGetDevice(&device_));
        poll_id_ = end_.waiter.progress().add([this] { return poll(); });
        diagnostic_id_ = end_.waiter.add_diagnostic([this] { return describe_pending(); });
    }
    ~GpuTransport() override {
        if (std::uncaught_exceptions() == 0) {
            try {  // the last batches still have to be sent
                wait([this] { return batches_.empty(); });
            } catch (const std::exception&) {
                // The device or the peers are gone, and that is reported elsewhere.
            }
        }
        end_.waiter.progress().remove(poll_id_);
        end_.waiter.remove_diagnostic(diagnostic_id_);
        for (const backend::CudaStream* stream : {&down_, &up_})
            cudaStreamSynchronize(*stream);  // it reads and writes the memory
    }

    std::byte* memory() override { return host_->memory(); }
    void set_end(End end) override { operations_ = end_.backends.at(end)->stream(); }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        follow_operations();
        if (std::byte* const there = pinned_.peer_memory(peer)) return copy(there + offset, source, bytes);
        for (std::size_t at = 0, part = 0; at < bytes; at += part) {
            MAESTRO_CHECK(staging_.largest() > 0, "edge {}: {} bytes of a rank that sends no rows", end_.edge,
                          bytes);
            part = std::min(staging_.largest(), bytes - at);
            std::byte* const staged = stage(part);
            copy(staged, static_cast<const std::byte*>(source) + at, part);
            draft().staged.push_back({peer, offset + at, staged, part});
        }
    }
    void signal(int peer, std::size_t offset, std::uint64_t flag) override {
        draft().signals.push_back({peer, offset, flag});
    }
    void flush(int peer) override { draft().peers.push_back(peer); }
    void submit(bool reuse) override {
        if (draft().peers.empty()) return;
        follow_operations();
        const bool copies = std::exchange(has_copies_, false);
        following_ = false;  // the next batch has to wait for what is computed until then
        seal(reuse && copies);
    }
    std::uint64_t load(std::size_t offset) override { return host_->load(offset); }
    int find(std::size_t offset, int count, std::uint64_t flag) override {
        return host_->find(offset, count, flag);
    }

    void zero(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(on_device(offset), 0, bytes, operations_));
    }
    /// The stream need not wait for operations. Those that used what was there before have ended: a peer may
    /// put here only after this rank has sent something that followed them, an acknowledgement or new rows.
    void copy_to_device(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(on_device(offset), memory() + offset, bytes, cudaMemcpyHostToDevice, up_));
        fetched_.record(up_);
    }
    std::byte* rows_at(std::size_t offset) override {
        fetched_.block(operations_);
        return on_device(offset);
    }

private:
    std::byte* on_device(std::size_t offset) const {
        return static_cast<std::byte*>(device_rows_.data()) + (offset - end_.flag_bytes);
    }
    CopyBatch& draft() { return draft_.front(); }
    /// The copies of a batch wait for everything that has been computed so far.
    void follow_operations() {
        if (std::exchange(following_, true)) return;
        computed_.record(operations_);
        computed_.block(down_);
    }
    void copy(std::byte* to, const void* from, std::size_t bytes) {
        MAESTRO_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, down_));
        has_copies_ = true;
    }
    /// If the staging memory is full, the rows copied so far are sent first, without their flags.
    std::byte* stage(std::size_t bytes) {
        {
            const std::lock_guard lock(mutex_);
            if (std::byte* const found = staging_.allocate(bytes)) return found;
        }
        for (const StagedCopy& staged_copy : draft().staged)
            if (std::find(draft().peers.begin(), draft().peers.end(), staged_copy.peer) ==
                draft().peers.end())
                draft().peers.push_back(staged_copy.peer);
        // Flags wait for the rest of the batch, because they announce rows that may still be to come.
        std::vector<Signal> later = std::exchange(draft().signals, {});
        if (!draft().staged.empty()) seal(false);
        draft().signals = std::move(later);
        std::byte* found = nullptr;
        wait([&] { return (found = staging_.allocate(bytes)) != nullptr; });
        return found;
    }
    /// Completes the draft; it is sent when its event is reached.
    void seal(bool hold) {
        draft().copied.record(down_);
        if (hold) draft().copied.block(operations_);
        {
            const std::lock_guard lock(mutex_);
            draft().staging = staging_.position();
            batches_.splice(batches_.end(), draft_);
            if (spare_.empty()) spare_.emplace_back();
            draft_.splice(draft_.end(), spare_, spare_.begin());
        }
        end_.waiter.progress().wake();
    }
    /// Waits until ready(), which is called with the lock held, and sends batches meanwhile.
    template <class Ready>
    void wait(Ready&& ready) {
        end_.waiter.wait_until(
            [&] {
                const std::lock_guard lock(mutex_);
                send_batches();
                return ready();
            },
            [&] { return fmt::format("the GPU to copy rows of edge {}", end_.edge); });
    }
    /// Called by whichever thread drives Progress.
    bool poll() {
        const std::lock_guard lock(mutex_);
        if (batches_.empty()) return false;
        MAESTRO_CUDA_CALL(cudaSetDevice(device_));
        send_batches();
        return true;
    }
    /// Batches are sent in the order of their events, which is the order of the copies: a flag
    /// cannot overtake rows of an earlier batch, and the ring is released in order.
    void send_batches() {
        while (!batches_.empty() && batches_.front().copied.reached()) {
            CopyBatch& batch = batches_.front();
            for (const StagedCopy& p : batch.staged) host_->put(p.peer, p.offset, p.memory, p.bytes);
            for (const Signal& s : batch.signals) host_->signal(s.peer, s.offset, s.flag);
            for (const int peer : batch.peers) host_->flush(peer);
            staging_.release(batch.staging);
            batch.staged.clear();
            batch.signals.clear();
            batch.peers.clear();
            spare_.splice(spare_.end(), batches_, batches_.begin());
        }
    }
    std::string describe_pending() {
        const std::lock_guard lock(mutex_);
        return batches_.empty() ? "" : fmt::format("the GPU is to copy rows of edge {}", end_.edge);
    }

    std::unique_ptr<Transport> host_;  ///< used with the lock held
    GpuEnd end_;
    PinnedMappings pinned_;
    backend::Buffer device_rows_;  ///< the device's copy of the memory behind the flags
    int device_ = 0;
    Stream operations_ = nullptr;  ///< of the end that is set
    backend::CudaStream down_, up_;
    backend::CudaEvent computed_, fetched_;
    std::list<CopyBatch> draft_{1};  ///< one batch, not yet submitted
    bool following_ = false;         ///< down_ already waits for what was computed before the draft
    bool has_copies_ = false;        ///< the draft has copies
    std::mutex mutex_;               ///< guards what follows
    PinnedRing staging_;
    std::list<CopyBatch> batches_;  ///< in the order of their events
    std::list<CopyBatch> spare_;
    comm::Progress::Id poll_id_;
    comm::Waiter::DiagnosticId diagnostic_id_;
};

}  // namespace

std::unique_ptr<Transport> make_gpu_transport(std::unique_ptr<Transport> host, const GpuEnd& end,
                                              std::string& refused) {
    return std::make_unique<GpuTransport>(std::move(host), end, refused);
}

}  // namespace maestro::transport
