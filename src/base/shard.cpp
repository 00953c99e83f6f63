#include "base/shard.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace maestro {

Range part_of(std::int64_t size, int index, int count) {
    const std::int64_t each = size / count, longer = size % count;
    const std::int64_t begin = index * each + std::min<std::int64_t>(index, longer);
    return {begin, begin + each + (index < longer ? 1 : 0)};
}

std::int64_t Shard::row_count() const {
    std::int64_t count = 0;
    for (const Range& r : rows) count += r.size();
    return count;
}

Shard make_shard(std::span<const Range> rows, Range columns) {
    Shard shard{{}, columns};
    for (const Range& r : rows) {
        MAESTRO_CHECK(shard.rows.empty() || r.begin >= shard.rows.back().end, "row ranges do not ascend");
        if (!shard.rows.empty() && shard.rows.back().end == r.begin)
            shard.rows.back().end = r.end;
        else
            shard.rows.push_back(r);
    }
    return shard;
}

Shard whole(const std::vector<std::int64_t>& shape) {
    MAESTRO_CHECK(shape.size() == 1 || shape.size() == 2, "an array of {} dimensions", shape.size());
    return {.rows = {{0, shape[0]}}, .columns = {0, shape.size() == 2 ? shape[1] : 1}};
}

std::vector<Extent> extents_of(const std::vector<std::int64_t>& shape, const Shard& shard, Range held) {
    const std::int64_t columns = whole(shape).columns.end, width = shard.columns.size();
    std::vector<Extent> extents;
    const auto add = [&](std::int64_t logical, std::int64_t local, std::int64_t count) {
        const std::int64_t skip = std::max<std::int64_t>(held.begin - local, 0);
        count = std::min(local + count, held.end) - local - skip;
        if (count <= 0) return;
        logical += skip;
        local += skip;
        if (!extents.empty() && extents.back().logical + extents.back().count == logical)
            extents.back().count += count;
        else
            extents.push_back({logical, local, count});
    };
    std::int64_t local = 0;
    for (const Range& r : shard.rows) {
        if (width == columns) {
            add(r.begin * columns, local, r.size() * columns);
        } else {
            const std::int64_t first =
                width > 0 ? std::clamp<std::int64_t>((held.begin - local) / width, 0, r.size()) : r.size();
            for (std::int64_t row = first; row < r.size() && local + row * width < held.end; ++row)
                add((r.begin + row) * columns + shard.columns.begin, local + row * width, width);
        }
        local += r.size() * width;
    }
    return extents;
}

std::vector<Extent> extents_of(const std::vector<std::int64_t>& shape, const Shard& shard) {
    return extents_of(shape, shard, {0, shard.size()});
}

}  // namespace maestro
