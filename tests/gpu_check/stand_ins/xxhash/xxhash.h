// In the place of the xxhash library, for the check of a GPU alone: XXH64 by its specification (Collet,
// "XXH64 digest algorithm"), so that tests get the same random numbers as elsewhere.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace xxh64 {

inline constexpr std::uint64_t kPrimes[] = {0x9E3779B185EBCA87u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                                            0x85EBCA77C2B2AE63u, 0x27D4EB2F165667C5u};

inline std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
    return std::rotl(lane + input * kPrimes[1], 31) * kPrimes[0];
}
template <class T>
std::uint64_t take(const unsigned char*& at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
}

/// The start of the digest, from whole stripes of 32 bytes.
inline std::uint64_t of_stripes(const unsigned char*& at, const unsigned char* end, std::uint64_t seed) {
    if (end - at < 32) return seed + kPrimes[4];
    std::array<std::uint64_t, 4> lanes{seed + kPrimes[0] + kPrimes[1], seed + kPrimes[1], seed,
                                       seed - kPrimes[0]};
    while (end - at >= 32)
        for (std::uint64_t& lane : lanes) lane = round(lane, take<std::uint64_t>(at));
    std::uint64_t digest =
        std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const std::uint64_t lane : lanes) digest = (digest ^ round(0, lane)) * kPrimes[0] + kPrimes[3];
    return digest;
}

}  // namespace xxh64

inline std::uint64_t XXH64(const void* input, std::size_t length, std::uint64_t seed) {
    using namespace xxh64;
    const auto* at = static_cast<const unsigned char*>(input);
    const auto* const end = at + length;
    std::uint64_t digest = of_stripes(at, end, seed) + length;
    while (end - at >= 8)
        digest = std::rotl(digest ^ round(0, take<std::uint64_t>(at)), 27) * kPrimes[0] + kPrimes[3];
    if (end - at >= 4)
        digest = std::rotl(digest ^ (take<std::uint32_t>(at) * kPrimes[0]), 23) * kPrimes[1] + kPrimes[2];
    while (at < end) digest = std::rotl(digest ^ (*at++ * kPrimes[4]), 11) * kPrimes[0];
    digest = (digest ^ (digest >> 33)) * kPrimes[1];
    digest = (digest ^ (digest >> 29)) * kPrimes[2];
    return digest ^ (digest >> 32);
}
