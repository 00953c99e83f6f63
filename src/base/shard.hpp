// Which part of a logical array a rank holds: what gives a weight its initial value and a part of a
// checkpoint its place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maestro {

/// [begin, end).
struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

/// Part `index` of [0, size) in `count` parts, as even as can be, the longer ones first.
Range part_of(std::int64_t size, int index, int count);

/// Some rows of some columns of a logical array [rows, columns]; a vector has one column. Row ranges ascend
/// and do not overlap; what is held lies row by row without gaps.
struct Shard {
    std::vector<Range> rows;
    Range columns;

    std::int64_t row_count() const;
    std::int64_t size() const { return row_count() * columns.size(); }
    bool operator==(const Shard&) const = default;
};

/// Row ranges, ascending; those that follow each other become one.
Shard make_shard(std::span<const Range> rows, Range columns);
/// Of an array of one or two dimensions.
Shard whole(const std::vector<std::int64_t>& shape);

/// Elements that follow each other both in the logical array and where they are held.
struct Extent {
    std::int64_t logical = 0, local = 0, count = 0;
    bool operator==(const Extent&) const = default;
};

/// The held elements [held.begin, held.end) of a shard, in their order, as few extents as there can be.
std::vector<Extent> extents_of(const std::vector<std::int64_t>& shape, const Shard& shard, Range held);
std::vector<Extent> extents_of(const std::vector<std::int64_t>& shape, const Shard& shard);

}  // namespace maestro
