// Shard: which elements of a logical array a rank holds. It determines the initial values of weights and
// their position in a checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maestro {

/// The indices [begin, end).
struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

/// Returns part `index` of [0, size) in `count` parts, whose sizes differ by at most 1, larger ones first.
Range part_of(std::int64_t size, int index, int count);

/// Rows and columns of a logical array [rows, columns] that a rank holds; a vector has one column. Row ranges
/// ascend and do not overlap. The elements are stored row by row without gaps.
struct Shard {
    std::vector<Range> rows;
    Range columns;

    std::int64_t row_count() const;
    std::int64_t size() const { return row_count() * columns.size(); }
    bool operator==(const Shard&) const = default;
};

/// `rows` ascend; adjacent ranges are merged.
Shard make_shard(std::span<const Range> rows, Range columns);
/// Returns the shard with all elements of an array of one or two dimensions.
Shard whole(const std::vector<std::int64_t>& shape);

/// Elements that are contiguous in the logical array, and in the shard unless `stride` says otherwise, with
/// their first indices.
struct Extent {
    std::int64_t logical = 0, local = 0, count = 0;
    std::int64_t stride = 1;  ///< in the shard, from element to element
    bool operator==(const Extent&) const = default;
};

/// Returns the elements [held.begin, held.end) of a shard, in order, in as few extents as possible.
std::vector<Extent> extents_of(const std::vector<std::int64_t>& shape, const Shard& shard, Range held);
std::vector<Extent> extents_of(const std::vector<std::int64_t>& shape, const Shard& shard);

}  // namespace maestro
