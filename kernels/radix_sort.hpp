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
    /// Elements (i32) of scratch that either form needs. The portable one keeps the counts of each tile and
    /// bin, and the rows before and after a pass; the second one keys and rows before and after a pass, and
    /// the library's memory.
    std::int64_t scratch() const {
        const std::int64_t portable = bins() * tiles + (passes > 1 ? 2 : 1) * rows,
                           second = 4 * rows + 64 + static_cast<std::int64_t>(library_bytes()) / 4;
        return portable > second ? portable : second;
    }
    /// An upper bound of what CUB needs: counts of 256 digits for each of its tiles, of 1024 rows or more.
    std::size_t library_bytes() const {
        return (std::size_t{1} << 17) + 1024 * static_cast<std::size_t>(tiles);
    }

    std::int64_t rows, keys, tiles;
    int passes, digit_bits;
};

/// Sorts by the form that use_nvcc_forms() selects. Returns the sorted rows, which lie in `scratch`
/// (i32[sort.scratch()], device memory).
const std::int32_t* sort_rows(Stream stream, const RadixSort& sort, const std::int32_t* keys,
                              std::int32_t* scratch);

namespace nvcc {
/// The same by CUB, kernels/nvcc/radix_sort.cu.
const std::int32_t* sort_rows(Stream stream, const RadixSort& sort, const std::int32_t* keys,
                              std::int32_t* scratch);
}  // namespace nvcc

}  // namespace maestro::kernels
