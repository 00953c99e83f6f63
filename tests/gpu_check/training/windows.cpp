// The window of an edge between ranks of a node is a file in memory that processes map. It is pinned, so that
// GPUs copy from and to it directly (transport/cuda/pinned_mappings.hpp).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend/arena.hpp"
#include "backend/device.hpp"
#include "base/check.hpp"
#include "fmt/format.h"
#include "json_line.hpp"
#include "peaks.hpp"
#include "training/checks.hpp"
#include "training/forked.hpp"
#include "transport/cuda/pinned_mappings.hpp"

namespace maestro::gpu_check {

namespace {

/// A file in memory, mapped once. Every process that has inherited it can map it again.
class SharedFile {
public:
    explicit SharedFile(std::size_t bytes) : file_(memfd_create("gpu_check", MFD_CLOEXEC)), bytes_(bytes) {
        MAESTRO_CHECK(file_ >= 0 && ftruncate(file_, static_cast<off_t>(bytes)) == 0,
                      "no file of {} bytes in memory: {}", bytes, std::strerror(errno));
    }
    ~SharedFile() { close(file_); }
    SharedFile(const SharedFile&) = delete;
    SharedFile& operator=(const SharedFile&) = delete;
    std::byte* map() const {
        void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        MAESTRO_CHECK(memory != MAP_FAILED, "mmap: {}", std::strerror(errno));
        return static_cast<std::byte*>(memory);
    }
    std::size_t bytes() const { return bytes_; }

private:
    int file_;
    std::size_t bytes_;
};

/// This rank's window and that of a peer, of the same size, in one file.
class TwoWindows final : public transport::Transport {
public:
    explicit TwoWindows(const SharedFile& file) : bytes_(file.bytes()), memory_(file.map()) {}
    ~TwoWindows() override { munmap(memory_, bytes_); }
    std::byte* memory() override { return memory_; }
    std::byte* peer_memory(int) override { return memory_ + bytes_ / 2; }
    void put(int, std::size_t offset, const void* source, std::size_t bytes) override {
        std::memcpy(peer_memory(0) + offset, source, bytes);
    }
    void signal(int, std::size_t, std::uint64_t) override {}
    void flush(int) override {}
    std::uint64_t load(std::size_t) override { return 0; }

private:
    std::size_t bytes_;
    std::byte* memory_;
};

std::byte pattern(std::size_t i, unsigned seed) {
    return static_cast<std::byte>((i * 131 + (i >> 12) * 7 + seed) & 0xff);
}

bool holds(const std::byte* data, std::size_t bytes, unsigned seed) {
    for (std::size_t i = 0; i < bytes; ++i)
        if (data[i] != pattern(i, seed)) return false;
    return true;
}

struct Rates {
    double to_host = 0, to_device = 0;  ///< bytes per second
};
/// Copies between the device and host memory, until the times are steady.
Rates measure(void* device, std::byte* host, std::size_t bytes, Stream stream) {
    DeviceTimer timer(stream);
    Rates rates;
    for (int i = 0; i < 5; ++i) {
        timer.start();
        MAESTRO_CUDA_CALL(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
        rates.to_host = std::max(rates.to_host, static_cast<double>(bytes) / timer.stop());
        timer.start();
        MAESTRO_CUDA_CALL(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
        rates.to_device = std::max(rates.to_device, static_cast<double>(bytes) / timer.stop());
    }
    return rates;
}

/// This process downloads to the peer's window, and uploads what the peer wrote into this process's. Returns
/// how many copies were wrong.
int copy_both_ways(TwoWindows& windows, const transport::PinnedMappings& pinned, std::size_t bytes) {
    const auto gpu = backend::make_cuda(0);
    const backend::Buffer memory(*gpu, bytes);
    const Tensor on_device(memory.data(), DType::u8, {static_cast<std::int64_t>(bytes)});
    std::vector<std::byte> host(bytes);
    for (std::size_t i = 0; i < bytes; ++i) host[i] = pattern(i, 3);
    gpu->upload(host.data(), on_device);
    std::byte* const peer = pinned.peer_memory(0);
    MAESTRO_CUDA_CALL(cudaMemcpyAsync(peer, memory.data(), bytes, cudaMemcpyDeviceToHost, gpu->stream()));
    MAESTRO_CUDA_CALL(cudaStreamSynchronize(gpu->stream()));
    const bool out = holds(peer, bytes, 3);
    MAESTRO_CUDA_CALL(
        cudaMemcpyAsync(memory.data(), windows.memory(), bytes, cudaMemcpyHostToDevice, gpu->stream()));
    gpu->download(on_device, host.data());
    const bool in = holds(host.data(), bytes, 5);
    const Rates direct = measure(memory.data(), peer, bytes, gpu->stream()),
                pageable = measure(memory.data(), host.data(), bytes, gpu->stream());
    JsonLine("windows")
        .add("bytes", static_cast<double>(bytes))
        .add("to_host", direct.to_host)
        .add("to_device", direct.to_device)
        .add("pageable_to_host", pageable.to_host)
        .add("pageable_to_device", pageable.to_device)
        .add("out", out)
        .add("in", in)
        .print();
    return !out + !in;
}

}  // namespace

int check_windows(const CheckOptions& options) {
    const std::size_t bytes = options.small ? std::size_t{1} << 18 : std::size_t{256} << 20;
    const SharedFile file(2 * bytes);
    // The peer is another process, which writes into this one's window.
    const int code = exit_code_of(options.seconds, [&] {
        std::byte* const mapped = file.map();
        for (std::size_t i = 0; i < bytes; ++i) mapped[i] = pattern(i, 5);
        return 0;
    });
    MAESTRO_CHECK(code == 0, "the peer ended with {}", code);
    backend::open_context({.gpu = true, .number = 0, .reason = {}, .gemm = {}});
    TwoWindows windows(file);
    std::string refused;
    int wrong = 0;
    {
        const transport::PinnedMappings pinned(windows, bytes, {bytes}, refused);
        if (!refused.empty()) {
            JsonLine("windows").add("skipped", refused + ": edges copy through staging buffers").print();
            return 0;
        }
        wrong = copy_both_ways(windows, pinned, bytes);
    }
    return wrong;
}

}  // namespace maestro::gpu_check
