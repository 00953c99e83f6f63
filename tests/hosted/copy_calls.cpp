// The runtime's calls that copy and fill. What the host may change after the call, and a device then reads,
// is decided here: pinned memory is read when the copy runs, other memory at the call.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <cstring>
#include <vector>

#include "runtime.hpp"
#include "stop.hpp"

namespace hosted {
namespace {

enum class Place { device, pinned, pageable, invalid };

/// `rows` rows of `bytes`, `pitch` apart.
struct Side {
    char* pointer;
    std::size_t pitch;
};
struct Copy {
    Side to, from;
    std::size_t bytes, rows;
    std::size_t span(const Side& side) const { return (rows - 1) * side.pitch + bytes; }
};

Place place_of(const Runtime& r, const void* pointer, std::size_t bytes) {
    if (pointer == nullptr) return Place::invalid;
    if (r.memory.maps(pointer)) return r.memory.find(pointer, bytes) ? Place::device : Place::invalid;
    if (r.pinned.holds(pointer, bytes)) return Place::pinned;
    return r.pinned.touches(pointer, bytes) ? Place::invalid : Place::pageable;
}

bool says(cudaMemcpyKind kind, Place to, Place from) {
    const bool to_device = to == Place::device, from_device = from == Place::device;
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

void move_rows(const Copy& c) {
    for (std::size_t row = 0; row < c.rows; ++row)
        std::memcpy(c.to.pointer + row * c.to.pitch, c.from.pointer + row * c.from.pitch, c.bytes);
}

void check_still(const Runtime& r, const void* pointer, std::size_t bytes, Place place) {
    if (place_of(r, pointer, bytes) != place)
        stop(fmt::format("{} bytes at {} were freed before the copy that was queued for them ran", bytes,
                         pointer));
}

cudaError_t copy(Runtime& r, Copy c, cudaMemcpyKind kind, cudaStream_t stream) {
    if (c.bytes == 0 || c.rows == 0) return cudaSuccess;
    if (c.bytes > c.to.pitch || c.bytes > c.from.pitch) return cudaErrorInvalidPitchValue;
    const Place to = place_of(r, c.to.pointer, c.span(c.to));
    const Place from = place_of(r, c.from.pointer, c.span(c.from));
    if (to == Place::invalid || from == Place::invalid || !says(kind, to, from)) return cudaErrorInvalidValue;
    std::vector<char> staged;
    if (from == Place::pageable) {
        staged.resize(c.bytes * c.rows);
        const Side stage{staged.data(), c.bytes};
        move_rows({stage, c.from, c.bytes, c.rows});
    }
    auto run = [&r, c, to, from, staged = std::move(staged)]() mutable {
        if (to != Place::pageable) check_still(r, c.to.pointer, c.span(c.to), to);
        if (from == Place::pageable)
            c.from = {staged.data(), c.bytes};
        else
            check_still(r, c.from.pointer, c.span(c.from), from);
        move_rows(c);
        return true;
    };
    r.streams.push(stream, {std::move(run), "a copy"});
    // The real one returns from such a copy only when it is done.
    if (to == Place::pageable) r.streams.run_until({r.streams.push_mark(stream)});
    return cudaSuccess;
}

cudaError_t copy_async(const Copy& c, cudaMemcpyKind kind, cudaStream_t stream) {
    return call([&](Runtime& r) {
        return r.streams.alive(stream) ? copy(r, c, kind, stream) : cudaErrorInvalidResourceHandle;
    });
}

/// In the legacy default stream, which waits for the streams that were not created as non-blocking, and only
/// for those.
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

cudaError_t fill(Runtime& r, void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (place_of(r, pointer, bytes) != Place::device) return cudaErrorInvalidValue;
    const auto run = [&r, pointer, value, bytes] {
        check_still(r, pointer, bytes, Place::device);
        std::memset(pointer, value, bytes);
        return true;
    };
    r.streams.push(stream, {run, "a fill"});
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
        return r.streams.alive(stream) ? hosted::fill(r, pointer, value, bytes, stream)
                                       : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
    return call([&](Runtime& r) {
        return hosted::in_legacy_stream(
            r, [&](cudaStream_t stream) { return hosted::fill(r, pointer, value, bytes, stream); });
    });
}
