// Memory taken in one order and given back in the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"

namespace maestro::transport {

/// Owns the memory. Positions count from the first byte ever taken.
template <class Memory>
class Ring {
public:
    /// `where`: what Memory wants before the bytes.
    template <class... Where>
    explicit Ring(std::size_t bytes, Where&... where) : memory_(where..., bytes), size_(bytes) {}
    std::size_t largest() const { return size_ / 2; }  ///< that a piece may be
    std::uint64_t taken() const { return end_; }
    /// In one piece; null where it is not free.
    std::byte* take(std::size_t bytes) {
        MAESTRO_CHECK(bytes <= largest(), "{} bytes of a ring of {}", bytes, size_);
        std::uint64_t begin = end_;
        if (const std::size_t left = size_ - begin % size_; left < bytes) begin += left;
        if (begin + bytes - begin_ > size_) return nullptr;
        end_ = begin + bytes;
        return static_cast<std::byte*>(static_cast<void*>(memory_.data())) + begin % size_;
    }
    void release(std::uint64_t taken) { begin_ = taken; }

private:
    Memory memory_;
    std::size_t size_;
    std::uint64_t begin_ = 0, end_ = 0;
};

}  // namespace maestro::transport
