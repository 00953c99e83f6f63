// Memory whose size is known before the first step. A Buffer owns one allocation of a backend. An Arena hands
// out tensors from one Buffer and frees them all at once, or back to a mark.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "backend/backend.hpp"

namespace maestro::backend {

/// Owns one allocation of a backend, which must outlive it.
class Buffer {
public:
    Buffer() = default;
    Buffer(Backend& backend, std::size_t bytes)
        : backend_(&backend), data_(backend.allocate(bytes)), bytes_(bytes) {}
    ~Buffer() { reset(); }
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    void* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    void reset() {
        if (data_) backend_->release(data_);
        data_ = nullptr;
    }
    void swap(Buffer& other) noexcept {
        std::swap(backend_, other.backend_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    Backend* backend_ = nullptr;
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// A bump allocator over one Buffer, which it owns. Without a capacity, or on the meta backend, it only
/// measures: the tensors must not be accessed, and peak() is the capacity that a real arena needs. Not
/// thread-safe.
class Arena {
public:
    Arena() = default;  ///< only measures
    /// `capacity` in bytes. The backend outlives the arena. Throws Error(device_memory).
    Arena(Backend& backend, std::size_t capacity)
        : buffer_(backend, capacity), capacity_(capacity), measures_(!backend.computes()) {}

    /// Returns uninitialized memory, aligned to 64 bytes, which is valid until reset() or until release() to
    /// an earlier mark. Throws Error(broken_invariant) beyond the capacity: what a task needs was planned.
    Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape);
    /// Returns the number of bytes in use, for release() to free what is allocated later.
    std::size_t mark() const { return used_; }
    void release(std::size_t mark) { used_ = mark; }
    void reset() { used_ = 0; }
    std::size_t peak() const { return peak_; }          ///< most bytes in use so far
    std::size_t capacity() const { return capacity_; }  ///< bytes

private:
    Buffer buffer_;
    std::size_t capacity_ = 0;
    std::size_t used_ = 0;
    std::size_t peak_ = 0;
    bool measures_ = true;
};

/// At the end of a scope, frees what was allocated from an arena within it.
class ArenaScope {
public:
    explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
    ~ArenaScope() { arena_.release(mark_); }
    ArenaScope(const ArenaScope&) = delete;
    ArenaScope& operator=(const ArenaScope&) = delete;

private:
    Arena& arena_;
    std::size_t mark_;
};

}  // namespace maestro::backend
