// The runtime's calls for memory, of the devices and of the host.
#include <cuda_runtime_api.h>

#include "runtime.hpp"

using hosted::call;
using hosted::Runtime;

namespace {

std::size_t left(const Runtime& r) {
    const std::size_t gone = r.memory.used() + r.taken;
    return gone < r.memory.capacity() ? r.memory.capacity() - gone : 0;
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return call([&](Runtime& r) {
        if (pointer == nullptr) return cudaErrorInvalidValue;
        *pointer = nullptr;
        if (bytes == 0) return cudaSuccess;
        if (bytes <= left(r)) *pointer = r.memory.allocate(bytes, hosted::current_device());
        return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
    });
}

/// Waits for the device, as a real one does.
cudaError_t cudaFree(void* pointer) {
    return call([&](Runtime& r) {
        if (pointer == nullptr) return cudaSuccess;
        const auto* const allocation = r.memory.find(pointer, 1);
        if (allocation == nullptr) return cudaErrorInvalidValue;
        r.streams.run_until(r.streams.push_marks(allocation->device, false));
        return r.memory.release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return call([&](Runtime& r) {
        if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
        *free = left(r);
        *total = r.memory.capacity();
        r.taken = r.taken_later;
        return cudaSuccess;
    });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    constexpr unsigned kKnown = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    return call([&](Runtime& r) {
        if (pointer == nullptr || (flags & ~kKnown) != 0) return cudaErrorInvalidValue;
        *pointer = nullptr;
        if (bytes == 0) return cudaSuccess;
        *pointer = r.pinned.allocate(bytes);
        return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
    });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

/// Waits for nothing: a copy that is still queued would be the caller's error, and stops when it runs.
cudaError_t cudaFreeHost(void* pointer) {
    return call([&](Runtime& r) {
        return pointer == nullptr || r.pinned.release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
    return call([&](Runtime& r) {
        if (pointer == nullptr || bytes == 0 || r.memory.maps(pointer)) return cudaErrorInvalidValue;
        return r.pinned.add(pointer, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
    });
}

cudaError_t cudaHostUnregister(void* pointer) {
    return call([&](Runtime& r) {
        if (pointer == nullptr) return cudaErrorInvalidValue;
        return r.pinned.remove(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    return call([&](Runtime& r) {
        if (attributes == nullptr) return cudaErrorInvalidValue;
        *attributes = {};
        attributes->device = hosted::current_device();
        if (const auto* const allocation = r.memory.find(pointer, 1)) {
            attributes->type = cudaMemoryTypeDevice;
            attributes->device = allocation->device;
            attributes->devicePointer = const_cast<void*>(pointer);
        } else if (r.pinned.holds(pointer, 1)) {
            attributes->type = cudaMemoryTypeHost;
            attributes->hostPointer = attributes->devicePointer = const_cast<void*>(pointer);
        } else {
            attributes->type = cudaMemoryTypeUnregistered;
        }
        return cudaSuccess;
    });
}
