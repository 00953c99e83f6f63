// Pinned host memory for the rows of an edge: the mappings of a transport, registered with CUDA, and a ring
// of dedicated memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/stream.hpp"
#include "transport/ring_buffer.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

/// Keeps the memory of a transport, and that of the peers that it reaches, registered with CUDA, which then
/// copies from and to it without a buffer between. All of it or none.
class PinnedMappings {
public:
    /// `bytes` of this rank's memory, and bytes of each peer's. `refused`: CUDA's reason if it does not pin
    /// them.
    PinnedMappings(Transport& transport, std::size_t bytes, const std::vector<std::size_t>& peers,
                   std::string& refused);
    ~PinnedMappings() { release(); }
    PinnedMappings(const PinnedMappings&) = delete;
    PinnedMappings& operator=(const PinnedMappings&) = delete;

    /// A peer's memory, if copies can write to it; otherwise null.
    std::byte* peer_memory(int peer) const { return reached_[static_cast<std::size_t>(peer)]; }
    bool reaches_all() const;

private:
    void release();
    std::vector<std::byte*> reached_;  ///< by peer
    std::vector<void*> registered_;
};

using PinnedRing = RingBuffer<backend::PinnedMemory>;

}  // namespace maestro::transport
