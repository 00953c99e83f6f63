#include "parallel/row_chunks.hpp"

#include <gmock/gmock.h>

#include <random>

namespace maestro::parallel::test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using Rows = std::vector<std::int64_t>;

TEST(RowChunks, AreOneWithoutOverlapAndWhereARankHasOneRow) {
    EXPECT_THAT(row_chunks(Rows{300, 299}, 1, false), SizeIs(1));
    EXPECT_THAT(row_chunks(Rows{2, 1, 1}, 0, true), SizeIs(1));
    EXPECT_THAT(row_chunks(Rows{1, 0}, 1, true), SizeIs(1));
    EXPECT_THAT(row_chunks(Rows{3, 2, 2}, 0, true), SizeIs(2));
}

TEST(RowChunks, HaveWholeTilesOfEveryRankInTheFirst) {
    const std::vector<RowChunk> chunks = row_chunks(Rows{301, 300, 300}, 0, true);
    ASSERT_THAT(chunks, SizeIs(2));
    EXPECT_THAT(chunks[0].tp_rows, ElementsAre(192, 192, 192));
    EXPECT_THAT(chunks[1].tp_rows, ElementsAre(109, 108, 108));
}

TEST(RowChunks, CoverTheRowsOfEveryRankAndOfTheSlice) {
    std::mt19937 random(3);
    for (int trial = 0; trial < 500; ++trial) {
        const int ranks = 1 + static_cast<int>(random() % 8);
        const std::int64_t total = static_cast<std::int64_t>(random() % (trial % 2 == 0 ? 40 : 3000));
        Rows tp_rows;
        for (int r = 0; r < ranks; ++r) tp_rows.push_back(part_of(total, r, ranks).size());
        for (int rank = 0; rank < ranks; ++rank) {
            std::int64_t local = 0, slice = 0;
            for (const RowChunk& chunk : row_chunks(tp_rows, rank, true)) {
                EXPECT_EQ(chunk.local.begin, local);
                EXPECT_EQ(chunk.slice.begin, slice);
                EXPECT_EQ(chunk.local.size(), chunk.tp_rows[static_cast<std::size_t>(rank)]);
                std::int64_t rows = 0;
                for (const std::int64_t n : chunk.tp_rows) rows += n;
                EXPECT_EQ(chunk.slice.size(), rows);
                EXPECT_TRUE(rows > 0 || total == 0);
                local = chunk.local.end;
                slice = chunk.slice.end;
            }
            EXPECT_EQ(local, tp_rows[static_cast<std::size_t>(rank)]);
            EXPECT_EQ(slice, total);
        }
    }
}

}  // namespace
}  // namespace maestro::parallel::test
