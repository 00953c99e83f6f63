// The memory of nodes and GPUs, which several ranks may share: which ranks share which, and whether what they
// need together fits. Pure.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

namespace maestro::workload {

/// What a rank needs of a memory, and found free there. Strings end with a 0.
struct MemoryClaim {
    std::array<char, 128> memory{};  ///< its identity: equal on ranks that share it
    std::array<char, 64> host{};
    std::array<char, 32> bus{};  ///< PCI address of the GPU
    int gpu = -1;                ///< its number in the rank's process; -1: the memory of the node
    double free = 0;             ///< bytes that the rank has found free
    double needed = 0;           ///< bytes
};

struct MemoryPool {
    std::string memory;
    std::string name;  ///< "HOST", "GPU 2 of HOST", "GPU 0 (PCI 0000:10:00.0) of HOST" where numbers mislead
    int ranks = 0;
    double free = 0;    ///< the least that any of its ranks found
    double needed = 0;  ///< by all of them
};

/// Returns the pools of all claims, in the order of their first ranks.
std::vector<MemoryPool> memory_pools_of(std::span<const MemoryClaim> claims);
/// Returns the pool of a claim.
const MemoryPool& memory_pool_of(std::span<const MemoryPool> pools, const MemoryClaim& claim);
/// Returns "the ranks on HOST need 20 MiB of memory, 10 MiB are free there" about the pool that lacks most,
/// or
/// "" where everything fits.
std::string shortage(std::span<const MemoryPool> pools);

}  // namespace maestro::workload
