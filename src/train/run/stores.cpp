#include "train/run/stores.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"

namespace maestro::train {

namespace {

bool same(const Claim& a, const Claim& b) {
    return std::string(a.memory.data()) == b.memory.data();
}

std::string plain_name(const Claim& claim) {
    return claim.gpu < 0 ? claim.host.data() : fmt::format("GPU {} of {}", claim.gpu, claim.host.data());
}

/// Numbers mislead where a GPU has several, or several GPUs have one.
std::string name_of(const Claim& claim, std::span<const Claim> claims) {
    const std::string plain = plain_name(claim);
    const bool misleads = std::any_of(claims.begin(), claims.end(), [&](const Claim& other) {
        return same(claim, other) != (plain == plain_name(other));
    });
    if (claim.gpu < 0 || !misleads) return plain;
    return fmt::format("GPU {} (PCI {}) of {}", claim.gpu, claim.bus.data(), claim.host.data());
}

}  // namespace

std::vector<Store> stores_of(std::span<const Claim> claims) {
    std::vector<Store> stores;
    for (const Claim& claim : claims) {
        auto at = std::find_if(stores.begin(), stores.end(),
                               [&](const Store& s) { return s.memory == claim.memory.data(); });
        if (at == stores.end())
            at = stores.insert(
                at, {.memory = claim.memory.data(), .name = name_of(claim, claims), .free = claim.free});
        ++at->ranks;
        at->free = std::min(at->free, claim.free);
        at->needed += claim.needed;
    }
    return stores;
}

const Store& store_of(std::span<const Store> stores, const Claim& claim) {
    const auto at = std::find_if(stores.begin(), stores.end(),
                                 [&](const Store& s) { return s.memory == claim.memory.data(); });
    MAESTRO_CHECK(at != stores.end(), "a memory that no rank has: {}", claim.memory.data());
    return *at;
}

std::string shortage(std::span<const Store> stores) {
    const auto worst = std::max_element(stores.begin(), stores.end(), [](const Store& a, const Store& b) {
        return a.needed - a.free < b.needed - b.free;
    });
    if (worst == stores.end() || worst->needed <= worst->free) return {};
    constexpr double kMiB = 1 << 20;
    return fmt::format("the ranks on {} need {:.0f} MiB of memory, {:.0f} MiB are free there", worst->name,
                       worst->needed / kMiB, worst->free / kMiB);
}

}  // namespace maestro::train
