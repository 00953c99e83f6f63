// A stable least-significant-digit radix sort of row numbers by key. Its time is linear in the rows, and its
// result depends on the keys alone.
#pragma once

#include <bit>
#include <cstdint>

#include "base/stream.hpp"

namespace maestro::kernels {

/// How the rows [0, rows) are sorted by keys[row]. Keys are below `keys`; negative keys count as equal and
/// come last. The digits of all passes have the same width, so that no pass has more bins than it needs.
struct RadixSort {
    static constexpr int kMaxDigitBits = 9;  ///< two passes for vocabularies below 2^18
    static constexpr int kTile = 1024;       ///< rows of a block

    RadixSort(std::int64_t rows_, std::int64_t keys_)
        : rows(rows_), keys(keys_), tiles((rows_ + kTile - 1) / kTile) {
        // The largest key is `keys` itself: negative ones become it.
        const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(keys)));
        passes = bits > kMaxDigitBits ? (bits + kMaxDigitBits - 1) / kMaxDigitBits : 1;
        digit_bits = (bits + passes - 1) / passes;
    }

    std::int64_t bins() const { return std::int64_t{1} << digit_bits; }
    /// Elements (i32) of scratch: the counts of each tile and bin, and the rows before and after a pass.
    std::int64_t scratch() const { return bins() * tiles + (passes > 1 ? 2 : 1) * rows; }

    std::int64_t rows, keys, tiles;
    int passes, digit_bits;
};

/// Returns the sorted rows, which lie in `scratch` (i32[sort.scratch()], device memory).
const std::int32_t* sort_rows(Stream stream, const RadixSort& sort, const std::int32_t* keys,
                              std::int32_t* scratch);

}  // namespace maestro::kernels
