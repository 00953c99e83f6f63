// The edge of a rank to itself on its GPU: rows stay on the device, in the order of its operations, so that
// what is answered needs no wait.
#include <cuda_runtime_api.h>

#include <vector>

#include "backend/arena.hpp"
#include "backend/cuda_check.hpp"
#include "base/check.hpp"
#include "channel/transport.hpp"

namespace maestro::channel {

namespace {

class GpuLocalTransport final : public Transport {
public:
    GpuLocalTransport(backend::Backend& backend, std::size_t words, std::size_t bytes)
        : backend_(backend),
          words_(words / sizeof(std::uint64_t), 0),
          size_(words),
          rows_(backend, bytes - words) {}

    std::byte* memory() override { return reinterpret_cast<std::byte*>(words_.data()); }
    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        MAESTRO_CHECK(peer == 0, "peer {} of a local transport", peer);
        if (bytes == 0) return;
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(fetched(offset), source, bytes, cudaMemcpyDeviceToDevice, backend_.stream()));
    }
    void signal(int peer, std::size_t offset, std::uint64_t word) override {
        MAESTRO_CHECK(peer == 0, "peer {} of a local transport", peer);
        words_.at(offset / sizeof word) = word;
    }
    void push(int) override {}
    std::uint64_t load(std::size_t offset) override { return words_.at(offset / sizeof(std::uint64_t)); }
    void clear(std::size_t offset, std::size_t bytes) override {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(fetched(offset), 0, bytes, backend_.stream()));
    }
    std::byte* fetched(std::size_t offset) override {
        return static_cast<std::byte*>(rows_.data()) + (offset - size_);
    }

private:
    backend::Backend& backend_;
    std::vector<std::uint64_t> words_;
    std::size_t size_;  ///< bytes of the words
    backend::Buffer rows_;
};

}  // namespace

std::unique_ptr<Transport> make_gpu_local(backend::Backend& backend, std::size_t words, std::size_t bytes) {
    return std::make_unique<GpuLocalTransport>(backend, words, bytes);
}

}  // namespace maestro::channel
