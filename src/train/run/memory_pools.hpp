// Memories that ranks share, a node's or a GPU's: who shares which, and whether all that they need fits.
// Pure.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

namespace maestro::train {

/// One rank's; words end with a 0.
struct MemoryClaim {
    std::array<char, 128> memory{};  ///< the same words on ranks that share it
    std::array<char, 64> host{};
    std::array<char, 32> bus{};  ///< where a GPU is on its host
    int gpu = -1;                ///< its number in the rank's process; -1: the memory is the node's
    double free = 0;             ///< bytes that the rank has found free
    double needed = 0;           ///< bytes
};

struct MemoryPool {
    std::string memory;
    std::string name;  ///< "HOST", "GPU 2 of HOST", "GPU 0 (PCI 0000:10:00.0) of HOST" where numbers mislead
    int ranks = 0;
    double free = 0;    ///< the least that any of its ranks has found
    double needed = 0;  ///< by all of them
};

/// In the order of their first ranks.
std::vector<MemoryPool> memory_pools_of(std::span<const MemoryClaim> claims);
/// The one of a claim that is among them.
const MemoryPool& memory_pool_of(std::span<const MemoryPool> pools, const MemoryClaim& claim);
/// "the ranks on HOST need 20 MiB of memory, 10 MiB are free there", of the one that lacks most; "" where
/// everything fits.
std::string shortage(std::span<const MemoryPool> pools);

}  // namespace maestro::train
