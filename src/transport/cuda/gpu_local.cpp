// The edge of a rank to itself on its GPU: rows stay on the device. What is announced at the call may not be
// computed yet: each word has an event in the stream of the end that gave it, which the other's waits for.
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
    GpuLocalTransport(const Backends& backends, std::size_t words, std::size_t bytes)
        : backends_(backends),
          words_(words / sizeof(std::uint64_t), 0),
          size_(words),
          rows_(*backends.any(), bytes - words) {}

    std::byte* memory() override { return reinterpret_cast<std::byte*>(words_.data()); }
    void serve(End end) override { operations_ = backends_.at(end)->stream(); }
    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        MAESTRO_CHECK(peer == 0, "peer {} of a local transport", peer);
        if (bytes == 0) return;
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(fetched(offset), source, bytes, cudaMemcpyDeviceToDevice, operations_));
    }
    void signal(int peer, std::size_t offset, std::uint64_t word) override {
        MAESTRO_CHECK(peer == 0, "peer {} of a local transport", peer);
        words_.at(offset / sizeof word) = word;
        announced_[offset].record(operations_);
    }
    void push(int) override {}
    void follow(std::size_t offset) override { announced_.at(offset).block(operations_); }
    std::uint64_t load(std::size_t offset) override { return words_.at(offset / sizeof(std::uint64_t)); }
    void clear(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(fetched(offset), 0, bytes, operations_));
    }
    std::byte* fetched(std::size_t offset) override {
        return static_cast<std::byte*>(rows_.data()) + (offset - size_);
    }

private:
    Backends backends_;
    Stream operations_ = nullptr;  ///< of the end that is served
    std::vector<std::uint64_t> words_;
    std::unordered_map<std::size_t, backend::CudaEvent> announced_;  ///< by the word's place
    std::size_t size_;                                               ///< bytes of the words
    backend::Buffer rows_;
};

}  // namespace

std::unique_ptr<Transport> make_gpu_local(const Backends& backends, std::size_t words, std::size_t bytes) {
    return std::make_unique<GpuLocalTransport>(backends, words, bytes);
}

}  // namespace maestro::transport
