// Pinned memory of the host for the rows of an edge: mappings that a transport has made, and a ring of our
// own.
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
    /// `bytes` of the own memory and of each peer's. `refused`: what CUDA says where it does not pin them.
    PinnedMappings(Transport& transport, std::size_t bytes, const std::vector<std::size_t>& peers,
                   std::string& refused);
    ~PinnedMappings() { release(); }
    PinnedMappings(const PinnedMappings&) = delete;
    PinnedMappings& operator=(const PinnedMappings&) = delete;

    /// Memory of a peer that copies can go to; null where there is none.
    std::byte* reach(int peer) const { return reached_[static_cast<std::size_t>(peer)]; }
    bool reaches_all() const;

private:
    void release();
    std::vector<std::byte*> reached_;  ///< by peer
    std::vector<void*> registered_;
};

using PinnedRing = Ring<backend::PinnedMemory>;

}  // namespace maestro::transport
