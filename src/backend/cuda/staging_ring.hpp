// Pinned memory of the host through which copies to and from a GPU pass, slot after slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/stream.hpp"

namespace maestro::backend {

/// Owns the slots. They are numbered in the order of use, without end: use n is of slot n % size(). Before a
/// slot is used again its event has to be reached, which its users see to.
class StagingRing {
public:
    struct Slot {
        PinnedMemory memory;
        CudaEvent copied;  ///< recorded behind the last copy from or to the memory
    };
    /// `bytes` of each slot; with 0 their users reserve what they need.
    explicit StagingRing(std::uint64_t slots, std::size_t bytes = 0) : slots_(slots) {
        for (Slot& slot : slots_) slot.memory.reserve(bytes);
    }
    std::uint64_t size() const { return slots_.size(); }
    Slot& operator[](std::uint64_t use) { return slots_[use % slots_.size()]; }

private:
    std::vector<Slot> slots_;
};

}  // namespace maestro::backend
