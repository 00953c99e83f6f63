#include "base/adhash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.hpp"

namespace maestro {
namespace {

std::uint64_t hash_of(const std::vector<unsigned char>& bytes, std::uint64_t offset = 0) {
    AdHash hash;
    hash.add(bytes.data(), bytes.size(), offset);
    return hash.value();
}

std::vector<unsigned char> some_bytes(std::size_t count) {
    std::vector<unsigned char> bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * i + 7 * i);
    return bytes;
}

// The first numbers of SplitMix64 with seed 0, as published with it: zero words at indices 0, 1 and 2.
TEST(AdHash, SumsTheNumbersOfSplitMix64) {
    constexpr std::array<std::uint64_t, 3> kNumbers{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4,
                                                    0x06c45d188009454f};
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kNumbers.size(); ++i) {
        EXPECT_EQ(hash_of(std::vector<unsigned char>(4, 0), 4 * i), kNumbers[i]);
        sum += kNumbers[i];
        EXPECT_EQ(hash_of(std::vector<unsigned char>(4 * i + 4, 0)), sum);
    }
    EXPECT_EQ(hash_of({}), 0u);
}

TEST(AdHash, IsTheSumOfItsPartsInAnyOrder) {
    const std::vector<unsigned char> bytes = some_bytes(1003);
    AdHash parts;
    for (const std::size_t at : {600, 0, 4, 400, 200, 12, 1000}) {
        const std::size_t end = at == 0      ? 4
                                : at == 4    ? 12
                                : at == 12   ? 200
                                : at == 1000 ? 1003
                                : at == 600  ? 1000
                                             : at + 200;
        parts.add(bytes.data() + at, end - at, at);
    }
    EXPECT_EQ(parts.value(), hash_of(bytes));
}

TEST(AdHash, NoticesEveryBitAndEverySwap) {
    std::vector<unsigned char> bytes = some_bytes(67);
    const std::uint64_t whole = hash_of(bytes);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
        EXPECT_NE(hash_of(bytes), whole);
        bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    }
    for (std::size_t a = 0; a < 16; ++a)
        for (std::size_t b = 0; b < a; ++b) {
            std::vector<unsigned char> swapped = bytes;
            std::swap_ranges(swapped.begin() + 4 * a, swapped.begin() + 4 * a + 4, swapped.begin() + 4 * b);
            EXPECT_NE(hash_of(swapped), whole);
        }
}

TEST(AdHash, PiecesBeginAtWholeWords) {
    EXPECT_THROW(hash_of({1, 2, 3, 4}, 2), Error);
}

}  // namespace
}  // namespace maestro
