// Shards and their extents, against an array walked element by element.
#include "base/shard.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace maestro {
namespace {

TEST(Shard, PartsAreEvenAndCoverTheWhole) {
    for (const std::int64_t size : {0, 1, 5, 12, 260})
        for (const int count : {1, 2, 3, 7}) {
            std::int64_t at = 0;
            for (int i = 0; i < count; ++i) {
                const Range part = part_of(size, i, count);
                EXPECT_EQ(part.begin, at);
                EXPECT_EQ(part.size(), (size + count - 1 - i) / count);
                at = part.end;
            }
            EXPECT_EQ(at, size);
        }
}

/// Logical places of what is held, by definition.
std::vector<std::int64_t> places(std::int64_t columns, const Shard& shard) {
    std::vector<std::int64_t> found;
    for (const Range& rows : shard.rows)
        for (std::int64_t r = rows.begin; r < rows.end; ++r)
            for (std::int64_t c = shard.columns.begin; c < shard.columns.end; ++c)
                found.push_back(r * columns + c);
    return found;
}

TEST(Shard, ExtentsAreTheElementsInOrderAndAsFewAsCanBe) {
    std::mt19937 random(1);
    const auto draw = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(random);
    };
    for (int trial = 0; trial < 2000; ++trial) {
        const bool vector = draw(0, 4) == 0;
        const std::int64_t rows = draw(0, 12), columns = vector ? 1 : draw(1, 6);
        Shard shard;
        for (std::int64_t at = draw(0, 2); at < rows; at += draw(0, 2)) {
            const std::int64_t end = std::min(rows, at + draw(1, 4));
            shard.rows.push_back({at, end});
            at = end;
        }
        const std::int64_t begin = vector || draw(0, 1) == 0 ? 0 : draw(0, columns - 1);
        shard.columns = {begin, begin == 0 && draw(0, 1) == 0 ? columns : draw(begin, columns)};
        const std::vector<std::int64_t> shape = vector ? std::vector{rows} : std::vector{rows, columns};
        const std::vector<std::int64_t> all = places(columns, shard);
        ASSERT_EQ(shard.size(), static_cast<std::int64_t>(all.size()));
        const std::int64_t from = draw(0, shard.size()), to = draw(from, shard.size());
        std::int64_t local = from;
        std::int64_t end = -1;  // of the one before
        for (const Extent& extent : extents_of(shape, shard, {from, to})) {
            EXPECT_EQ(extent.local, local);
            EXPECT_GT(extent.count, 0);
            EXPECT_NE(extent.logical, end) << "two extents that are one";
            for (std::int64_t i = 0; i < extent.count; ++i, ++local)
                ASSERT_EQ(extent.logical + i, all[static_cast<std::size_t>(local)]);
            end = extent.logical + extent.count;
        }
        EXPECT_EQ(local, to);
    }
}

TEST(Shard, TheWholeIsOneExtent) {
    EXPECT_EQ(extents_of({4, 3}, whole({4, 3})), (std::vector<Extent>{{0, 0, 12}}));
    EXPECT_EQ(extents_of({5}, whole({5}), {2, 4}), (std::vector<Extent>{{2, 2, 2}}));
    EXPECT_TRUE(extents_of({0}, whole({0})).empty());
}

}  // namespace
}  // namespace maestro
