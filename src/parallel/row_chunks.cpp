#include "parallel/row_chunks.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"

namespace maestro::parallel {

namespace {
constexpr std::int64_t kRowUnit = 64;  // with those of another rank, the rows of a GEMM's tile
}  // namespace

std::vector<RowChunk> row_chunks(std::span<const std::int64_t> tp_rows, int rank, bool overlap) {
    MAESTRO_CHECK(!tp_rows.empty(), "no tp ranks");
    const std::int64_t fewest = *std::min_element(tp_rows.begin(), tp_rows.end());
    std::vector<std::int64_t> bounds = {0, std::numeric_limits<std::int64_t>::max()};
    if (overlap && fewest >= 2) {
        // The first chunk has as many rows of one rank as of another, which NCCL gathers and sums fastest.
        const std::int64_t half = (fewest + 1) / 2;
        bounds.insert(bounds.begin() + 1,
                      fewest < 2 * kRowUnit ? half : (half + kRowUnit - 1) / kRowUnit * kRowUnit);
    }
    std::vector<RowChunk> chunks;
    std::int64_t first = 0;
    for (std::size_t c = 0; c + 1 < bounds.size(); ++c) {
        const auto range_of = [&](std::int64_t rows) {
            return Range{std::min(bounds[c], rows), std::min(bounds[c + 1], rows)};
        };
        RowChunk chunk{{}, range_of(tp_rows[static_cast<std::size_t>(rank)]), {first, first}};
        for (const std::int64_t rows : tp_rows) {
            chunk.tp_rows.push_back(range_of(rows).size());
            chunk.slice.end += chunk.tp_rows.back();
        }
        first = chunk.slice.end;
        chunks.push_back(std::move(chunk));
    }
    return chunks;
}

}  // namespace maestro::parallel
