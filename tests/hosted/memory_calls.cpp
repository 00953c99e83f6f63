// The CUDA runtime's calls for device memory and pinned host memory.
#include <cuda_runtime_api.h>

#include "counts.hpp"
#include "runtime.hpp"

using hosted::call;
using hosted::Runtime;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return call([&](Runtime& r) {
        if (pointer == nullptr) return cudaErrorInvalidValue;
        *pointer = nullptr;
        if (const cudaError_t none = hosted::make_context(r); none != cudaSuccess) return none;
        if (bytes == 0) return cudaSuccess;
        const int device = hosted::current_device();
        hosted::count("cudaMalloc");
        const std::size_t before = r.memory.used();
        if (bytes <= hosted::free_bytes(r)) *pointer = r.memory.allocate(bytes, device);
        r.ledger.add(r.gpus.at(static_cast<std::size_t>(device)), r.memory.used() - before);
        return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
    });
}

/// Waits for the device, as CUDA's does.
cudaError_t cudaFree(void* pointer) {
    return call([&](Runtime& r) {
        if (const cudaError_t none = hosted::make_context(r); none != cudaSuccess) return none;
        if (pointer == nullptr) return cudaSuccess;
        const auto* const allocation = r.memory.find(pointer, 1);
        if (allocation == nullptr) return cudaErrorInvalidValue;
        hosted::count("cudaFree");
        const int device = allocation->device;
        r.streams.run_until(r.streams.push_marks(device, false));
        const std::size_t before = r.memory.used();
        if (!r.memory.release(pointer)) return cudaErrorInvalidValue;
        r.ledger.subtract(r.gpus.at(static_cast<std::size_t>(device)), before - r.memory.used());
        return cudaSuccess;
    });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return call([&](Runtime& r) {
        if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
        if (const cudaError_t none = hosted::make_context(r); none != cudaSuccess) return none;
        *free = hosted::free_bytes(r);
        *total = r.memory.capacity();
        r.used = r.external_later;
        return cudaSuccess;
    });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    constexpr unsigned kKnown = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    return call([&](Runtime& r) {
        if (pointer == nullptr || (flags & ~kKnown) != 0) return cudaErrorInvalidValue;
        *pointer = nullptr;
        if (bytes == 0) return cudaSuccess;
        hosted::count("cudaHostAlloc");
        *pointer = r.pinned.allocate(bytes);
        return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
    });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

/// Does not wait. If a copy from or to the memory is still queued, which is an error of the caller, the
/// program ends when the copy runs.
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
        } else if (r.pinned.contains(pointer, 1)) {
            attributes->type = cudaMemoryTypeHost;
            attributes->hostPointer = attributes->devicePointer = const_cast<void*>(pointer);
        } else {
            attributes->type = cudaMemoryTypeUnregistered;
        }
        return cudaSuccess;
    });
}
