// The edge of a rank to itself on its GPU: rows stay on the device. When a flag is set, its rows may not have
// been computed yet: each flag has an event in the stream of the end that set it, for which the other end's
// stream waits.
#include <cuda_runtime_api.h>

#include <unordered_map>
#include <vector>

#include "backend/arena.hpp"
#include "backend/cuda/check.hpp"
#include "backend/cuda/stream.hpp"
#include "base/check.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

namespace {

class GpuLocalTransport final : public Transport {
public:
    GpuLocalTransport(const Backends& backends, std::size_t flag_bytes, std::size_t bytes)
        : backends_(backends),
          flags_(flag_bytes / sizeof(std::uint64_t), 0),
          flag_bytes_(flag_bytes),
          rows_(*backends.any(), bytes - flag_bytes) {}

    std::byte* memory() override { return reinterpret_cast<std::byte*>(flags_.data()); }
    void set_end(End end) override { operations_ = backends_.at(end)->stream(); }
    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        MAESTRO_CHECK(peer == 0, "peer {} of a local transport", peer);
        if (bytes == 0) return;
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(rows_at(offset), source, bytes, cudaMemcpyDeviceToDevice, operations_));
    }
    void signal(int peer, std::size_t offset, std::uint64_t flag) override {
        MAESTRO_CHECK(peer == 0, "peer {} of a local transport", peer);
        // The host that sets the flag is the one that reads it, so no atomic is needed. The event stands for
        // the rows that were put before, or computed in place where a pointer is passed.
        flags_.at(offset / sizeof flag) = flag;
        announced_[offset].record(operations_);
    }
    void flush(int) override {}
    void wait_on_device(std::size_t offset) override { announced_.at(offset).block(operations_); }
    std::uint64_t load(std::size_t offset) override { return flags_.at(offset / sizeof(std::uint64_t)); }
    void zero(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(rows_at(offset), 0, bytes, operations_));
    }
    std::byte* rows_at(std::size_t offset) override {
        return static_cast<std::byte*>(rows_.data()) + (offset - flag_bytes_);
    }

private:
    Backends backends_;
    Stream operations_ = nullptr;  ///< of the end that is set
    std::vector<std::uint64_t> flags_;
    std::unordered_map<std::size_t, backend::CudaEvent> announced_;  ///< by the flag's offset
    std::size_t flag_bytes_;
    backend::Buffer rows_;
};

}  // namespace

std::unique_ptr<Transport> make_gpu_local(const Backends& backends, std::size_t flag_bytes,
                                          std::size_t bytes) {
    return std::make_unique<GpuLocalTransport>(backends, flag_bytes, bytes);
}

}  // namespace maestro::transport
