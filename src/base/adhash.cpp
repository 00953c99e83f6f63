#include "base/adhash.hpp"

#include <cstring>

#include "base/check.hpp"
#include "base/split_mix64.hpp"

namespace maestro {

void AdHash::add(const void* data, std::uint64_t bytes, std::uint64_t offset) {
    MAESTRO_CHECK(offset % kWord == 0, "a piece of a file begins at byte {}", offset);
    const auto* const source = static_cast<const unsigned char*>(data);
    const std::uint64_t words = bytes / kWord;
    // The index counts from 1, so that a zero at the beginning counts as well. Sums in a local variable and
    // without branches, so that the compiler vectorizes the loop: 10 GB/s with AVX-512 instead of 3.
    std::uint64_t counter = (offset / kWord + 1) * kSplitMixStep, sum = 0;
    for (std::uint64_t i = 0; i < words; ++i) {
        std::uint32_t word = 0;
        std::memcpy(&word, source + i * kWord, kWord);
        sum += split_mix(counter + i * kSplitMixStep + word);
    }
    if (const std::uint64_t rest = bytes % kWord; rest > 0) {
        std::uint32_t word = 0;
        std::memcpy(&word, source + words * kWord, rest);
        sum += split_mix(counter + words * kSplitMixStep + word);
    }
    value_ += sum;
}

}  // namespace maestro
