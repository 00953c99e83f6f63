// Chunks of rows whose sums are taken one by one and then added up, so that sums over rows are always the
// same.
#pragma once

#include <cstdint>

namespace maestro::kernels {

/// Of so many rows: partial sums take [row_chunks(rows), columns].
inline std::int64_t row_chunks(std::int64_t rows) {
    const std::int64_t chunks = (rows + 63) / 64;
    return chunks < 128 ? chunks : 128;
}

}  // namespace maestro::kernels
