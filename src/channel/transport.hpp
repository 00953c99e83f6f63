// What a channel needs from the machine: memory that peers write into, puts, flushes and a flag to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.hpp"

namespace maestro::channel {

/// Owns this rank's exposed memory (zeroed at the start). Peers are ranks of the edge's communicator. One
/// thread.
class Transport {
public:
    virtual ~Transport() = default;
    virtual std::byte* memory() = 0;  ///< this rank's exposed memory, 64-byte aligned
    /// Starts a copy into `peer`'s memory at byte `offset`; `source` stays untouched until flush().
    virtual void put(int peer, std::size_t offset, const void* source, std::size_t bytes) = 0;
    virtual void flush(int peer) = 0;  ///< all puts to `peer` so far are visible there
    /// A word of the own memory that a peer writes; what that peer flushed before it is visible afterwards.
    virtual std::uint64_t load(std::size_t offset) = 0;
};

/// Passive-target window over `edge` (collective; every rank its own `bytes`). `edge` must outlive it.
std::unique_ptr<Transport> make_mpi_window(const comm::Communicator& edge, std::size_t bytes);
/// Both ends are this rank; peer is 0.
std::unique_ptr<Transport> make_local(std::size_t bytes);

}  // namespace maestro::channel
