// Memory sized before the first step. Buffer owns one allocation; Arena hands out pieces of one and takes
// them back all at once, or back to a mark.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "backend/backend.hpp"

namespace maestro::backend {

/// One allocation of a Backend, which must outlive it.
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

/// A bump allocator over one Buffer. Without a capacity it only measures: addresses are not to be touched and
/// peak() tells what a real one needs. Not thread-safe.
class Arena {
public:
    Arena() = default;  ///< measures
    Arena(Backend& backend, std::size_t capacity)
        : buffer_(backend, capacity), capacity_(capacity), measures_(!backend.computes()) {}

    /// Uninitialized memory, 64-byte aligned, valid until reset() or release() to an earlier mark.
    Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape);
    std::size_t mark() const { return used_; }
    void release(std::size_t mark) { used_ = mark; }
    void reset() { used_ = 0; }
    std::size_t peak() const { return peak_; }          ///< bytes
    std::size_t capacity() const { return capacity_; }  ///< bytes

private:
    Buffer buffer_;
    std::size_t capacity_ = 0;
    std::size_t used_ = 0;
    std::size_t peak_ = 0;
    bool measures_ = true;
};

/// Gives back to its arena, at the end of a scope, what was taken within it.
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
