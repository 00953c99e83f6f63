// Helpers for tests of the simulated runtime: error checks, streams, events, and arrays in device and pinned
// memory.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "hosted.hpp"

namespace hosted {

inline void check(cudaError_t error) {
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

class Stream {
public:
    Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator cudaStream_t() const { return stream_; }
    void wait() const { check(cudaStreamSynchronize(stream_)); }

private:
    cudaStream_t stream_ = nullptr;
};

class Event {
public:
    explicit Event(unsigned flags = cudaEventDisableTiming) {
        check(cudaEventCreateWithFlags(&event_, flags));
    }
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    operator cudaEvent_t() const { return event_; }

private:
    cudaEvent_t event_ = nullptr;
};

template <class T>
class Array {
public:
    explicit Array(std::size_t size) : size_(size) {
        void* pointer = nullptr;
        check(cudaMalloc(&pointer, size * sizeof(T)));
        data_ = static_cast<T*>(pointer);
    }
    explicit Array(const std::vector<T>& values) : Array(values.size()) {
        const Unlocked unlocked;
        std::copy(values.begin(), values.end(), data_);
    }
    ~Array() { cudaFree(data_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    T* get() const { return data_; }
    /// The current contents; queued work may not have run yet.
    std::vector<T> values() const {
        const Unlocked unlocked;
        return {data_, data_ + size_};
    }

private:
    T* data_ = nullptr;
    std::size_t size_;
};

template <class T>
class PinnedArray {
public:
    explicit PinnedArray(const std::vector<T>& values) : size_(values.size()) {
        void* pointer = nullptr;
        check(cudaMallocHost(&pointer, size_ * sizeof(T)));
        data_ = static_cast<T*>(pointer);
        std::copy(values.begin(), values.end(), data_);
    }
    ~PinnedArray() { cudaFreeHost(data_); }
    PinnedArray(const PinnedArray&) = delete;
    PinnedArray& operator=(const PinnedArray&) = delete;
    T* get() const { return data_; }
    std::span<T> values() const { return {data_, size_}; }

private:
    T* data_ = nullptr;
    std::size_t size_;
};

/// Whether `body` returns true for at least one of 50 seeds.
template <class Body>
bool some_seed(Body&& body) {
    for (std::uint64_t value = 1; value <= 50; ++value) {
        seed(value);
        if (body()) return true;
    }
    return false;
}

}  // namespace hosted
