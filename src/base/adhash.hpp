// AdHash: a checksum that several ranks compute together, each of the bytes that it has. It is the sum modulo
// 2^64 of one hash for each word of four bytes, which depends on the word and on its place in the file
// (Bellare and Micciancio, "A new paradigm for collision-free hashing: incrementality at reduced cost",
// EUROCRYPT 1997). The hash of a word is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). A
// change of a single word is always noticed, any other with a probability of 1 - 2^-64. It finds damage, not
// forgery.
#pragma once

#include <cstdint>

namespace maestro {

class AdHash {
public:
    static constexpr std::uint64_t kWord = 4;  ///< bytes

    /// Adds bytes that begin at byte `offset` of the file, a multiple of kWord. Only the last bytes of a file
    /// may be a part of a word; zeros complete it. Each byte is to be added once, in any order.
    void add(const void* data, std::uint64_t bytes, std::uint64_t offset);
    std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 0;
};

}  // namespace maestro
