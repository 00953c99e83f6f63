#include "workload/memory_pools.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"

namespace maestro::workload {

namespace {

bool same(const MemoryClaim& a, const MemoryClaim& b) {
    return std::string(a.memory.data()) == b.memory.data();
}

std::string plain_name(const MemoryClaim& claim) {
    return claim.gpu < 0 ? claim.host.data() : fmt::format("GPU {} of {}", claim.gpu, claim.host.data());
}

/// Numbers mislead where a GPU has several, or several GPUs have one.
std::string name_of(const MemoryClaim& claim, std::span<const MemoryClaim> claims) {
    const std::string plain = plain_name(claim);
    const bool misleads = std::any_of(claims.begin(), claims.end(), [&](const MemoryClaim& other) {
        return same(claim, other) != (plain == plain_name(other));
    });
    if (claim.gpu < 0 || !misleads) return plain;
    return fmt::format("GPU {} (PCI {}) of {}", claim.gpu, claim.bus.data(), claim.host.data());
}

}  // namespace

std::vector<MemoryPool> memory_pools_of(std::span<const MemoryClaim> claims) {
    std::vector<MemoryPool> pools;
    for (const MemoryClaim& claim : claims) {
        auto at = std::find_if(pools.begin(), pools.end(),
                               [&](const MemoryPool& s) { return s.memory == claim.memory.data(); });
        if (at == pools.end())
            at = pools.insert(
                at, {.memory = claim.memory.data(), .name = name_of(claim, claims), .free = claim.free});
        ++at->ranks;
        at->free = std::min(at->free, claim.free);
        at->needed += claim.needed;
    }
    return pools;
}

const MemoryPool& memory_pool_of(std::span<const MemoryPool> pools, const MemoryClaim& claim) {
    const auto at = std::find_if(pools.begin(), pools.end(),
                                 [&](const MemoryPool& s) { return s.memory == claim.memory.data(); });
    MAESTRO_CHECK(at != pools.end(), "a memory that no rank has: {}", claim.memory.data());
    return *at;
}

std::string shortage(std::span<const MemoryPool> pools) {
    const auto worst = std::max_element(
        pools.begin(), pools.end(),
        [](const MemoryPool& a, const MemoryPool& b) { return a.needed - a.free < b.needed - b.free; });
    if (worst == pools.end() || worst->needed <= worst->free) return {};
    constexpr double kMiB = 1 << 20;
    return fmt::format("the ranks on {} need {:.0f} MiB of memory, {:.0f} MiB are free there", worst->name,
                       worst->needed / kMiB, worst->free / kMiB);
}

}  // namespace maestro::workload
