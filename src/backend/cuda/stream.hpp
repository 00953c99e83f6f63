// Streams, events and pinned memory of CUDA as values that free what they hold.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "backend/cuda/check.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// A place in a stream, for other streams and the host to wait for.
class CudaEvent {
public:
    /// cudaEventDefault where it is to tell times.
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
    /// What `stream` is given from now on waits for the place recorded last. The host does not.
    void hold(Stream stream) const {
        MAESTRO_CUDA_CALL(cudaStreamWaitEvent(stream, event_, cudaEventWaitDefault));
    }
    /// True also where nothing was recorded.
    bool reached() const {
        const cudaError_t found = cudaEventQuery(event_);
        if (found != cudaErrorNotReady) MAESTRO_CUDA_CALL(found);
        if (found == cudaSuccess) return true;
        cudaGetLastError();  // or a launch's check would report it
        return false;
    }
    void synchronize() const { MAESTRO_CUDA_CALL(cudaEventSynchronize(event_)); }
    /// Both tell times and are reached.
    double seconds_after(const CudaEvent& earlier) const {
        float milliseconds = 0;
        MAESTRO_CUDA_CALL(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
        return 1e-3 * static_cast<double>(milliseconds);
    }

private:
    cudaEvent_t event_ = nullptr;
};

/// A stream beside the one for computing, of the calling thread's GPU.
class CudaStream {
public:
    CudaStream() { MAESTRO_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~CudaStream() { cudaStreamDestroy(stream_); }
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;
    operator Stream() const { return stream_; }

private:
    Stream stream_ = nullptr;
};

/// Memory of the host that copies of a GPU read and write while the host goes on. No copy may be queued for
/// it when it grows or goes.
class PinnedMemory {
public:
    explicit PinnedMemory(std::size_t bytes = 0) { reserve(bytes); }
    ~PinnedMemory() {
        if (data_) cudaFreeHost(data_);
    }
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;

    std::byte* data() const { return data_; }
    /// Makes room for so many bytes; what was there is lost where it grows.
    void reserve(std::size_t bytes) {
        if (bytes <= bytes_) return;
        if (data_) MAESTRO_CUDA_CALL(cudaFreeHost(std::exchange(data_, nullptr)));
        bytes_ = 0;
        MAESTRO_CUDA_CALL(cudaMallocHost(reinterpret_cast<void**>(&data_), bytes));
        bytes_ = bytes;
    }

private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace maestro::backend
