// The rows of a slice in chunks, so that the exchange of one chunk along tp goes on beside the GEMM of
// another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/shard.hpp"

namespace maestro::parallel {

/// Some of the rows of every tp rank.
struct RowChunk {
    std::vector<std::int64_t> tp_rows;  ///< how many of each tp rank
    Range local;                        ///< which of this rank's rows
    /// Where they lie among the rows of all ranks, which are ordered by chunk and, within a chunk, by rank.
    /// Several chunks thus have an order other than the slice's: it suits operations that do not mix rows.
    Range slice;
};

/// Returns the chunks of a slice with tp_rows[r] rows of each tp rank r, as rank `rank` sees them: two with
/// `overlap` where every rank has at least two rows, otherwise one.
std::vector<RowChunk> row_chunks(std::span<const std::int64_t> tp_rows, int rank, bool overlap);

}  // namespace maestro::parallel
