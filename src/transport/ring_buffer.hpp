// A ring buffer: memory that is released in the order in which it was allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"

namespace maestro::transport {

/// Owns the memory. Positions count from the first byte ever allocated.
template <class Memory>
class RingBuffer {
public:
    /// `where`: the arguments of Memory's constructor before the size.
    template <class... Where>
    explicit RingBuffer(std::size_t bytes, Where&... where) : memory_(where..., bytes), size_(bytes) {}
    std::size_t largest() const { return size_ / 2; }  ///< size of an allocation
    std::uint64_t position() const { return end_; }    ///< behind what was allocated last
    /// Consecutive bytes; null if not enough is free. No allocation is larger than half the ring, or one that
    /// begins near the end could wait for itself.
    std::byte* allocate(std::size_t bytes) {
        MAESTRO_CHECK(bytes <= largest(), "{} bytes of a ring of {}", bytes, size_);
        std::uint64_t begin = end_;
        if (const std::size_t left = size_ - begin % size_; left < bytes) begin += left;
        if (begin + bytes - begin_ > size_) return nullptr;
        end_ = begin + bytes;
        return static_cast<std::byte*>(static_cast<void*>(memory_.data())) + begin % size_;
    }
    /// Releases everything that was allocated before this position.
    void release(std::uint64_t position) { begin_ = position; }

private:
    Memory memory_;
    std::size_t size_;
    std::uint64_t begin_ = 0, end_ = 0;
};

}  // namespace maestro::transport
