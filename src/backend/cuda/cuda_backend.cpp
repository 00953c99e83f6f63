#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>

#include "backend/backend.hpp"
#include "backend/cuda/check.hpp"
#include "backend/cuda/cudnn_attention.hpp"
#include "backend/cuda/event_clock.hpp"
#include "backend/cuda/gemm.hpp"
#include "backend/cuda/run_ahead.hpp"
#include "backend/cuda/staged_reader.hpp"
#include "backend/cuda/staging_ring.hpp"
#include "backend/cuda/stream.hpp"
#include "backend/device.hpp"
#include "backend/gpus.hpp"
#include "base/kernel_forms.hpp"

namespace maestro::backend {

namespace {

int architecture_of(int gpu) {
    int major = 0, minor = 0;
    MAESTRO_CUDA_CALL(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu));
    MAESTRO_CUDA_CALL(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu));
    return 10 * major + minor;
}

constexpr std::size_t kSlotBytes = std::size_t{1} << 20;
constexpr int kSlots = 8;

/// Copies between pageable host memory and the device through a ring of pinned staging buffers.
/// cudaMemcpyAsync() from pageable memory would block the host. `wait` blocks until the device has reached an
/// event.
class Staging {
public:
    Staging(Stream stream, std::function<void(const CudaEvent&)> wait)
        : stream_(stream), wait_(std::move(wait)), ring_(kSlots, kSlotBytes) {}

    void upload(const std::byte* source, std::byte* target, std::size_t bytes) {
        for (std::size_t at = 0; at < bytes; at += kSlotBytes) {
            const std::size_t size = std::min(kSlotBytes, bytes - at);
            StagingRing::Slot& slot = next_free();
            std::memcpy(slot.memory.data(), source + at, size);
            MAESTRO_CUDA_CALL(
                cudaMemcpyAsync(target + at, slot.memory.data(), size, cudaMemcpyHostToDevice, stream_));
            slot.copied.record(stream_);
        }
    }
    void download(const std::byte* source, std::byte* target, std::size_t bytes) {
        for (std::size_t at = 0; at < bytes; at += kSlotBytes) {
            const std::size_t size = std::min(kSlotBytes, bytes - at);
            StagingRing::Slot& slot = next_free();
            MAESTRO_CUDA_CALL(
                cudaMemcpyAsync(slot.memory.data(), source + at, size, cudaMemcpyDeviceToHost, stream_));
            slot.copied.record(stream_);
            wait_(slot.copied);
            std::memcpy(target + at, slot.memory.data(), size);
        }
    }

private:
    /// The next slot, after its previous copy has finished.
    StagingRing::Slot& next_free() {
        StagingRing::Slot& slot = ring_[uses_++];
        wait_(slot.copied);
        return slot;
    }
    Stream stream_;
    std::function<void(const CudaEvent&)> wait_;
    StagingRing ring_;
    std::uint64_t uses_ = 0;
};

class CudaBackend final : public Backend {
public:
    CudaBackend(int device, GemmOptions options)
        : device_(select(device)),
          gemm_(stream_, options, [this](const CudaEvent& event) { wait_for(event); }),
          staging_(stream_, [this](const CudaEvent& event) { wait_for(event); }),
          run_ahead_(stream_, [this](const CudaEvent& event) { wait_for(event); }),
          clock_(stream_, [this](const CudaEvent& event) { wait_for(event); }),
          cudnn_(make_cudnn_attention(stream_, architecture_of(device))),
          attention_support_(cudnn_.attention ? cudnn_support(architecture_of(device)) : AttentionSupport()) {
    }
    ~CudaBackend() override { cudaStreamSynchronize(stream_); }
    std::string describe() const override {
        int driver = 0, runtime = 0;
        MAESTRO_CUDA_CALL(cudaDriverGetVersion(&driver));
        MAESTRO_CUDA_CALL(cudaRuntimeGetVersion(&runtime));
        return fmt::format(
            "cuda: {}, driver for CUDA {}.{}, runtime {}.{}, {}, {}{}", describe_gpu(device_), driver / 1000,
            driver / 10 % 100, runtime / 1000, runtime / 10 % 100, gemm_.describe(), cudnn_.description,
            nvcc_forms_selected() ? ", second forms of kernels (MAESTRO_KERNEL_FORMS=nvcc)" : "");
    }
    bool computes() const override { return true; }
    int threads() const override { return 1; }
    Stream stream() const override { return stream_; }
    Clock& clock() override { return clock_; }
    std::string gpu() const override { return identity_of_gpu(device_); }
    void* allocate(std::size_t bytes) override {
        void* pointer = nullptr;
        if (cudaMalloc(&pointer, std::max<std::size_t>(bytes, 1)) != cudaSuccess) {
            cudaGetLastError();  // clears the error, which the next check would report otherwise
            std::size_t free = 0, total = 0;
            MAESTRO_CUDA_CALL(cudaMemGetInfo(&free, &total));
            throw Error(ExitCode::device_memory,
                        fmt::format("cannot allocate {} MiB of GPU {}'s memory: {} of {} MiB are free",
                                    bytes >> 20, device_, free >> 20, total >> 20));
        }
        return pointer;
    }
    void release(void* pointer) noexcept override {
        // cudaFree() waits for the device. After an error the device may wait for another rank forever.
        if (!wait_failed_ && std::uncaught_exceptions() == 0) cudaFree(pointer);
    }
    bool shares_memory() const override { return false; }
    void upload(const void* source, const Tensor& target) override {
        staging_.upload(static_cast<const std::byte*>(source), static_cast<std::byte*>(target.data),
                        target.bytes());
    }
    void download(const Tensor& source, void* target) override {
        staging_.download(static_cast<const std::byte*>(source.data), static_cast<std::byte*>(target),
                          source.bytes());
    }
    std::unique_ptr<DeviceToHostReader> read_to_host(std::vector<Tensor> tensors) override {
        return std::make_unique<CudaDeviceToHostReader>(stream_, std::move(tensors),
                                                        [this](const CudaEvent& event) { wait_for(event); });
    }
    AttentionSupport attention_support() const override { return attention_support_; }
    FusedAttention* fused_attention() override { return cudnn_.attention.get(); }
    void gemm(const Gemm& g) override {
        count(work_of(g));
        if (g.m == 0 || g.n == 0) return;
        gemm_.run(g, {});
        queued(1);
    }
    bool gemm_with(const Gemm& g, const Epilogue& epilogue) override {
        if (g.m == 0 || g.n == 0 || !gemm_.run(g, epilogue)) return false;
        count(work_of(g));
        queued(1);
        return true;
    }
    /// One GEMM after another. A GEMM of few rows occupies few multiprocessors and takes about as long as its
    /// launch. A kernel for all groups would not have these limits: cublasGemmGroupedBatchedEx() is one, but
    /// it reads the addresses of matrices from device memory.
    void grouped_gemm(const GroupedGemm& g) override {
        count(work_of(g));
        for (std::size_t group = 0; group < g.groups(); ++group) {
            const Gemm of_group = g.of_group(group);
            if (of_group.m == 0 || of_group.n == 0 || of_group.k == 0) continue;
            gemm_.run(of_group, {});
            queued(1);
        }
    }
    void queued(std::int64_t kernels) override { run_ahead_.queued(kernels); }

private:
    void wait_for(const CudaEvent& event) {
        if (!wait()) return event.synchronize();
        try {
            wait()([&] { return event.reached(); }, fmt::format("GPU {} to finish its queued work", device_));
        } catch (...) {
            wait_failed_ = true;
            throw;
        }
    }
    static int select(int device) {
        MAESTRO_CUDA_CALL(cudaSetDevice(device));
        return device;
    }
    int device_;
    /// A wait ended in an error before the device was done. Memory is no longer freed then, because
    /// cudaFree() would wait for the device again.
    bool wait_failed_ = false;
    CudaStream stream_{CudaStream::Priority::computation};  ///< destroyed after what refers to it
    CudaGemm gemm_;
    Staging staging_;
    RunAhead run_ahead_;
    CudaClock clock_;
    CudnnAttention cudnn_;
    AttentionSupport attention_support_;
};

}  // namespace

void cuda_failed(ExitCode code, const char* expression, const char* file, int line,
                 const std::string& message) {
    throw Error(code, fmt::format("{}:{}: {}: {}", file, line, expression, message));
}

AttentionSupport attention_support_of_gpu(int number) {
    return cudnn_support(architecture_of(number));
}

std::unique_ptr<Backend> make_cuda(int device, GemmOptions options) {
    return std::make_unique<CudaBackend>(device, options);
}

}  // namespace maestro::backend
