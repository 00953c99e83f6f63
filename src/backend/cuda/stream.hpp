// RAII classes for CUDA streams, events and pinned memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "backend/cuda/check.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// A CUDA event: a point in a stream that other streams and the host can wait for.
class CudaEvent {
public:
    /// flags: cudaEventDefault for events that measure time.
    explicit CudaEvent(unsigned flags = cudaEventDisableTiming) {
        MAESTRO_CUDA_CALL(cudaEventCreateWithFlags(&event_, flags));
    }
    ~CudaEvent() {
        if (event_) cudaEventDestroy(event_);
    }
    CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    void record(Stream stream) { MAESTRO_CUDA_CALL(cudaEventRecord(event_, stream)); }
    /// Makes all later work of `stream` wait for the last recorded point. Does not block the host.
    void block(Stream stream) const {
        MAESTRO_CUDA_CALL(cudaStreamWaitEvent(stream, event_, cudaEventWaitDefault));
    }
    /// Whether the device has reached the last recorded point. True if nothing was recorded.
    bool reached() const {
        const cudaError_t found = cudaEventQuery(event_);
        if (found != cudaErrorNotReady) MAESTRO_CUDA_CALL(found);
        if (found == cudaSuccess) return true;
        cudaGetLastError();  // clears cudaErrorNotReady, which the next check would report otherwise
        return false;
    }
    void synchronize() const { MAESTRO_CUDA_CALL(cudaEventSynchronize(event_)); }
    /// Both events measure time and were reached.
    double seconds_after(const CudaEvent& earlier) const {
        float milliseconds = 0;
        MAESTRO_CUDA_CALL(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
        return 1e-3 * static_cast<double>(milliseconds);
    }

private:
    cudaEvent_t event_ = nullptr;
};

/// A stream of the calling thread's GPU.
class CudaStream {
public:
    /// Exchanges are short, and others wait for them: their thread blocks are the first to get what becomes
    /// free of a multiprocessor. GEMMs would otherwise keep them waiting until the last of their blocks.
    enum class Priority { computation, exchange };
    explicit CudaStream(Priority priority = Priority::exchange) {
        int least = 0, greatest = 0;
        MAESTRO_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        MAESTRO_CUDA_CALL(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                                       priority == Priority::exchange ? greatest : least));
        ++count_;
    }
    ~CudaStream() {
        cudaStreamDestroy(stream_);
        --count_;
    }
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;
    operator Stream() const { return stream_; }
    static int count() { return count_; }  ///< streams of this process

private:
    inline static std::atomic<int> count_ = 0;
    Stream stream_ = nullptr;
};

/// Pinned (page-locked) host memory, which asynchronous copies need. No copy may be queued for it when it is
/// destroyed.
class PinnedMemory {
public:
    explicit PinnedMemory(std::size_t bytes = 0) { reserve(bytes); }
    ~PinnedMemory() {
        for (std::byte* const outgrown : outgrown_) cudaFreeHost(outgrown);
        if (data_) cudaFreeHost(data_);
    }
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;

    std::byte* data() const { return data_; }
    /// Grows to at least `bytes`. The contents are lost where it grows. What it outgrows is freed at the end,
    /// because cudaFreeHost() waits for all work of the device, which may wait for other ranks.
    void reserve(std::size_t bytes) {
        if (bytes <= bytes_) return;
        if (data_) outgrown_.push_back(std::exchange(data_, nullptr));
        bytes_ = 0;
        MAESTRO_CUDA_CALL(cudaMallocHost(reinterpret_cast<void**>(&data_), bytes));
        bytes_ = bytes;
    }

private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::vector<std::byte*> outgrown_;
};

}  // namespace maestro::backend
