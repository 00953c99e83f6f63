// Sums over rows are computed in two steps, over chunks of rows and then over the chunks. The chunks depend
// on the number of rows alone, so that a sum is bit for bit the same in every run.
#pragma once

#include <cstdint>

namespace maestro::kernels {

/// The number of chunks: partial sums have the shape [row_chunks(rows), columns].
inline std::int64_t row_chunks(std::int64_t rows) {
    const std::int64_t chunks = (rows + 63) / 64;
    return chunks < 128 ? chunks : 128;
}

/// The number of chunks where one pass computes something else of all rows as well, as in
/// rms_norm_backward(): a block for each, several blocks on each multiprocessor.
inline std::int64_t fused_row_chunks(std::int64_t rows) {
    const std::int64_t chunks = (rows + 7) / 8;
    return chunks < 512 ? chunks : 512;
}

}  // namespace maestro::kernels
