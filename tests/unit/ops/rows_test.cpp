// Tables, rows and pictures: what goes where.
#include "ops/rows.hpp"
#include "ops/embedding.hpp"
#include "ops/patchify.hpp"
#include "support/tensors.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace maestro::ops {
namespace {

class Rows : public testing_support::Tensors {};

TEST_F(Rows, EmbeddingTakesRowsAndAddsTheirGradients) {
    const std::vector<std::int32_t> ids{3, -1, 0, 3, 3};
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
        const Tensor table = random(type, {4, 6}), y = filled(type, {5, 6}, 9),
                     dtable = filled(sums, {4, 6}, 1);
        embedding(b_, ids, table, y);
        const Tensor dy = filled(type, {5, 6}, 0.5);
        embedding_backward(b_, ids, dy, dtable);
        for (std::int64_t t = 0; t < 5; ++t)
            for (std::int64_t c = 0; c < 6; ++c) {
                const std::int64_t id = ids[static_cast<std::size_t>(t)];
                EXPECT_EQ(get(y, t * 6 + c), id < 0 ? 0 : get(table, id * 6 + c));
            }
        for (std::int64_t id = 0; id < 4; ++id)
            EXPECT_EQ(get(dtable, id * 6),
                      1 + 0.5 * static_cast<double>(std::count(ids.begin(), ids.end(), id)));
    }
    EXPECT_THROW(embedding(b_, ids, random(DType::f32, {4, 6}), filled(DType::f32, {0, 6})), Error);
    const std::vector<std::int32_t> beyond{4};
    EXPECT_THROW(embedding(b_, beyond, random(DType::f32, {4, 6}), filled(DType::f32, {1, 6})), Error);
}

TEST_F(Rows, GatherAndScatterAreInverse) {
    const std::vector<std::int32_t> places{4, 0, 2};
    const Tensor source = random(DType::f32, {3, 5}), wide = filled(DType::f32, {6, 5}, 7),
                 back = filled(DType::f32, {3, 5});
    scatter_rows(b_, source, places, wide);
    gather_rows(b_, wide, places, back);
    EXPECT_EQ(values(back), values(source));
    for (const std::int64_t untouched : {1, 3, 5}) EXPECT_EQ(get(wide, untouched * 5), 7);
    const std::vector<std::int32_t> beyond{0, 1, 6};
    EXPECT_THROW(scatter_rows(b_, source, beyond, wide), Error);
    EXPECT_THROW(gather_rows(b_, wide, beyond, back), Error);
}

// 3 x 5 pixels, patches of 2, merged 2 x 2: 4 x 8 pixels after extension, two blocks of four patches.
TEST_F(Rows, PatchesComeInMergedBlocksAndEdgesAreExtended) {
    std::vector<std::uint8_t> pixels(15);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(10 * i);
    ASSERT_EQ(picture_patches(3, 5, 2, 2), 8);
    const Tensor patches = filled(DType::f64, {8, 4});
    patchify(b_, pixels.data(), 3, 5, 1, 2, 2, 0, patches);
    std::vector<std::int32_t> y, x;
    patch_positions(3, 5, 2, 2, y, x);
    EXPECT_THAT(y, testing::ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
    EXPECT_THAT(x, testing::ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));
    for (std::int64_t p = 0; p < 8; ++p)
        for (std::int64_t row = 0; row < 2; ++row)
            for (std::int64_t column = 0; column < 2; ++column) {
                const auto i = static_cast<std::size_t>(p);
                const std::int64_t at_y = std::min<std::int64_t>(y[i] * 2 + row, 2),
                                   at_x = std::min<std::int64_t>(x[i] * 2 + column, 4);
                EXPECT_NEAR(get(patches, p * 4 + row * 2 + column),
                            pixels[static_cast<std::size_t>(at_y * 5 + at_x)] / 127.5 - 1, 1e-12)
                    << "patch " << p;
            }
}

TEST_F(Rows, ChannelsOfAPixelStayTogether) {
    const std::vector<std::uint8_t> pixels{0, 51, 102, 153, 204, 255};  // 1 x 2 pixels of 3 channels
    const Tensor patches = filled(DType::f64, {1, 12});
    patchify(b_, pixels.data(), 1, 2, 3, 2, 1, 0, patches);
    const std::vector<double> row{-1, -0.6, -0.2, 0.2, 0.6, 1};
    for (std::size_t i = 0; i < 12; ++i)
        EXPECT_NEAR(get(patches, static_cast<std::int64_t>(i)), row[i % 6], 1e-12)
            << "the second row repeats the first";
}

}  // namespace
}  // namespace maestro::ops
