// The CUDA runtime's memcpy and memset. As in CUDA, an asynchronous copy reads pinned memory when it runs, so
// that the host must not change it before, and pageable memory during the call.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <cstring>
#include <vector>

#include "counts.hpp"
#include "runtime.hpp"
#include "stop.hpp"

namespace hosted {
namespace {

enum class MemoryKind { device, pinned, pageable, invalid };

/// One side of a copy of rows, which begin `pitch` bytes apart.
struct Side {
    char* pointer;
    std::size_t pitch;
};
struct Copy {
    Side to, from;
    std::size_t bytes, rows;
    std::size_t span(const Side& side) const { return (rows - 1) * side.pitch + bytes; }
};

MemoryKind kind_of(const Runtime& r, const void* pointer, std::size_t bytes) {
    if (pointer == nullptr) return MemoryKind::invalid;
    if (r.memory.maps(pointer))
        return r.memory.find(pointer, bytes) ? MemoryKind::device : MemoryKind::invalid;
    if (r.pinned.contains(pointer, bytes)) return MemoryKind::pinned;
    return r.pinned.overlaps(pointer, bytes) ? MemoryKind::invalid : MemoryKind::pageable;
}

bool matches(cudaMemcpyKind kind, MemoryKind to, MemoryKind from) {
    const bool to_device = to == MemoryKind::device, from_device = from == MemoryKind::device;
    switch (kind) {
        case cudaMemcpyHostToHost:
            return !to_device && !from_device;
        case cudaMemcpyHostToDevice:
            return to_device && !from_device;
        case cudaMemcpyDeviceToHost:
            return !to_device && from_device;
        case cudaMemcpyDeviceToDevice:
            return to_device && from_device;
        case cudaMemcpyDefault:
            return true;
    }
    return false;
}

void copy_rows(const Copy& c) {
    for (std::size_t row = 0; row < c.rows; ++row)
        std::memcpy(c.to.pointer + row * c.to.pitch, c.from.pointer + row * c.from.pitch, c.bytes);
}

const char* name_of(MemoryKind to, MemoryKind from) {
    if (from == MemoryKind::device) {
        if (to == MemoryKind::device) return "a copy on the device";
        return to == MemoryKind::pinned ? "a copy to the host" : "a copy to pageable memory";
    }
    return to == MemoryKind::device ? "a copy to the device" : "a copy on the host";
}

void check_not_freed(const Runtime& r, const void* pointer, std::size_t bytes, MemoryKind expected) {
    if (kind_of(r, pointer, bytes) != expected)
        stop(fmt::format("{} bytes at {} were freed before the copy that was queued for them ran", bytes,
                         pointer));
}

cudaError_t copy(Runtime& r, Copy c, cudaMemcpyKind kind, cudaStream_t stream) {
    if (c.bytes == 0 || c.rows == 0) return cudaSuccess;
    if (c.bytes > c.to.pitch || c.bytes > c.from.pitch) return cudaErrorInvalidPitchValue;
    const MemoryKind to = kind_of(r, c.to.pointer, c.span(c.to));
    const MemoryKind from = kind_of(r, c.from.pointer, c.span(c.from));
    if (to == MemoryKind::invalid || from == MemoryKind::invalid || !matches(kind, to, from))
        return cudaErrorInvalidValue;
    count(name_of(to, from), c.bytes * c.rows);
    std::vector<char> staged;
    if (from == MemoryKind::pageable) {
        staged.resize(c.bytes * c.rows);
        const Side stage{staged.data(), c.bytes};
        copy_rows({stage, c.from, c.bytes, c.rows});
    }
    auto run = [&r, c, to, from, staged = std::move(staged)]() mutable {
        if (to != MemoryKind::pageable) check_not_freed(r, c.to.pointer, c.span(c.to), to);
        if (from == MemoryKind::pageable)
            c.from = {staged.data(), c.bytes};
        else
            check_not_freed(r, c.from.pointer, c.span(c.from), from);
        copy_rows(c);
        return true;
    };
    r.streams.push(stream, {std::move(run), "a copy"});
    // As in CUDA, a copy to pageable memory returns when it is done.
    if (to == MemoryKind::pageable) r.streams.run_until({r.streams.push_mark(stream)});
    return cudaSuccess;
}

cudaError_t copy_async(const Copy& c, cudaMemcpyKind kind, cudaStream_t stream) {
    return call([&](Runtime& r) {
        return r.streams.alive(stream) ? copy(r, c, kind, stream) : cudaErrorInvalidResourceHandle;
    });
}

/// Runs in the legacy default stream, which synchronizes with all streams that were not created as
/// non-blocking.
template <class Queue>
cudaError_t in_legacy_stream(Runtime& r, const Queue& queue) {
    if (r.random.one_in(2)) r.streams.run_some();
    r.streams.run_until(r.streams.push_marks(current_device(), true));
    const cudaStream_t stream = r.streams.create(current_device(), true);
    const cudaError_t error = queue(stream);
    r.streams.run_until({r.streams.push_mark(stream)});
    r.streams.destroy(stream);
    return error;
}

cudaError_t memset_async(Runtime& r, void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (kind_of(r, pointer, bytes) != MemoryKind::device) return cudaErrorInvalidValue;
    const auto run = [&r, pointer, value, bytes] {
        check_not_freed(r, pointer, bytes, MemoryKind::device);
        std::memset(pointer, value, bytes);
        return true;
    };
    count("a memset", bytes);
    r.streams.push(stream, {run, "a memset"});
    return cudaSuccess;
}

Copy rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
          std::size_t count) {
    char* const source = static_cast<char*>(const_cast<void*>(from));
    return {{static_cast<char*>(to), to_pitch}, {source, from_pitch}, bytes, count};
}

}  // namespace
}  // namespace hosted

using hosted::call;
using hosted::Runtime;

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return hosted::copy_async(hosted::rows(to, bytes, from, bytes, bytes, 1), kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes,
                              size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
    return hosted::copy_async(hosted::rows(to, to_pitch, from, from_pitch, bytes, rows), kind, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return call([&](Runtime& r) {
        return hosted::in_legacy_stream(r, [&](cudaStream_t stream) {
            return hosted::copy(r, hosted::rows(to, bytes, from, bytes, bytes, 1), kind, stream);
        });
    });
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
    return call([&](Runtime& r) {
        return r.streams.alive(stream) ? hosted::memset_async(r, pointer, value, bytes, stream)
                                       : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
    return call([&](Runtime& r) {
        return hosted::in_legacy_stream(
            r, [&](cudaStream_t stream) { return hosted::memset_async(r, pointer, value, bytes, stream); });
    });
}
