// A ring of pinned staging buffers for copies between host and GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/stream.hpp"

namespace maestro::backend {

/// Owns the slots. Uses are numbered consecutively, and use n has slot n % size(). Before a slot is used
/// again, callers must wait for its event.
class StagingRing {
public:
    struct Slot {
        PinnedMemory memory;
        CudaEvent copied;  ///< recorded after the last copy from or to the memory
    };
    /// `bytes`: size of each slot. With 0, callers reserve memory as they need it.
    explicit StagingRing(std::uint64_t slots, std::size_t bytes = 0) : slots_(slots) {
        for (Slot& slot : slots_) slot.memory.reserve(bytes);
    }
    std::uint64_t size() const { return slots_.size(); }
    Slot& operator[](std::uint64_t use) { return slots_[use % slots_.size()]; }

private:
    std::vector<Slot> slots_;
};

}  // namespace maestro::backend
