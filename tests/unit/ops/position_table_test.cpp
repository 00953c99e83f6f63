// The interpolated position table: which rows a patch lies between, their weighted sum and its gradient.
#include "ops/position_table.hpp"
#include "support/views.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace maestro::ops {
namespace {

using testing_support::kOnGpu;
using testing_support::kTypes;
using testing_support::rounded;
using testing_support::rounding;

class PositionTable : public testing_support::Views {
protected:
    using Numbers = std::vector<double>;
    static std::vector<GridPosition> grid(std::int32_t height, std::int32_t width) {
        std::vector<GridPosition> patches;
        for (std::int32_t y = 0; y < height; ++y)
            for (std::int32_t x = 0; x < width; ++x) patches.push_back({y, x, height, width});
        return patches;
    }
    /// Returns four rows of a table for each patch, some of them several times, with weights that are powers
    /// of two.
    static InterpolatedRows some_rows(std::int64_t patches, std::int64_t table_rows) {
        const Random numbers(7, "rows of a table");
        InterpolatedRows rows;
        for (std::int64_t i = 0; i < 4 * patches; ++i) {
            const double x = numbers.uniform(static_cast<std::uint64_t>(i));
            rows.index.push_back(static_cast<std::int32_t>(x * x * static_cast<double>(table_rows)));
            rows.weight.push_back(std::ldexp(1.0, -static_cast<int>(i % 5)));
        }
        return rows;
    }
};

// Bilinear interpolation is exact for f = 1, y, x and y x.
TEST_F(PositionTable, InterpolatesBilinearFunctionsExactly) {
    for (const std::int64_t side : {1, 2, 7, 48})
        for (const std::int32_t height : {1, 2, 6, 48, 97})
            for (const std::int32_t width : {1, 4, 13, 48, 50}) {
                const auto patches = grid(height, width);
                const InterpolatedRows rows = interpolate_rows(patches, side);
                ASSERT_EQ(rows.index.size(), 4 * patches.size());
                ASSERT_EQ(rows.weight.size(), 4 * patches.size());
                for (std::size_t p = 0; p < patches.size(); ++p) {
                    const std::string what = fmt::format("patch ({}, {}) of {} x {} in a table of {}",
                                                         patches[p].y, patches[p].x, height, width, side);
                    const auto place = [&](std::int32_t at, std::int32_t count) {
                        return count == 1 ? 0.0 : static_cast<double>(at * (side - 1)) / (count - 1);
                    };
                    const double y = place(patches[p].y, height), x = place(patches[p].x, width);
                    double one = 0, by_y = 0, by_x = 0, by_both = 0;
                    for (std::size_t i = 4 * p; i < 4 * p + 4; ++i) {
                        const std::int64_t row = rows.index[i] / side, column = rows.index[i] % side;
                        const double weight = rows.weight[i];
                        ASSERT_TRUE(rows.index[i] >= 0 && row < side && weight >= 0) << what;
                        if (weight > 0) {
                            ASSERT_LT(std::abs(static_cast<double>(row) - y), 1) << what;
                            ASSERT_LT(std::abs(static_cast<double>(column) - x), 1) << what;
                        }
                        one += weight;
                        by_y += weight * static_cast<double>(row);
                        by_x += weight * static_cast<double>(column);
                        by_both += weight * static_cast<double>(row * column);
                    }
                    ASSERT_NEAR(one, 1, 1e-14) << what;
                    ASSERT_NEAR(by_y, y, 1e-13) << what;
                    ASSERT_NEAR(by_x, x, 1e-13) << what;
                    ASSERT_NEAR(by_both, y * x, 1e-11) << what;
                }
            }
}

TEST_F(PositionTable, IsReadAsItIsByAPictureOfItsSize) {
    const InterpolatedRows rows = interpolate_rows(grid(48, 48), 48);
    for (std::size_t i = 0; i < rows.index.size(); ++i) {
        ASSERT_EQ(rows.weight[i], i % 4 == 0 ? 1 : 0);
        if (rows.weight[i] == 0) continue;
        ASSERT_EQ(rows.index[i], static_cast<std::int32_t>(i / 4));
    }
}

// torch.nn.functional.interpolate(mode="bilinear", align_corners=True) of PyTorch 2.15 in float64, from 4 x 4
// to 3 x 6, and its gradient.
TEST_F(PositionTable, EqualsPyTorch) {
    Numbers values, gradient;
    for (int row = 0; row < 4; ++row)
        for (int column = 0; column < 4; ++column) values.push_back((row * row + 1.0) / (column + 2));
    for (int i = 0; i < 18; ++i) gradient.push_back(i);
    const InterpolatedRows rows = interpolate_rows(grid(3, 6), 4);
    const Tensor index = list(rows.index), weight = list(rows.weight),
                 table = view(DType::f64, 16, 1, 0, values), x = view(DType::f64, 18, 1, 0, 0.0),
                 dy = view(DType::f64, 18, 1, 0, gradient), dtable = view(DType::f64, 16, 1, 0, 0.0);
    position_embedding(b_, index, weight, table, x);
    position_embedding_backward(b_, index, weight, dy, dtable, scratch_);
    expect_each(x,
                {0.5, 0.4, 0.316666666666667, 0.266666666666667, 0.23, 0.2, 1.75, 1.4, 1.10833333333333,
                 0.933333333333333, 0.805, 0.7, 5, 4, 3.16666666666667, 2.66666666666667, 2.3, 2},
                1e-14, "positions");
    expect_each(dtable, {0.4, 2.8, 5.2, 6.6, 4.4, 6.2, 7.4, 7.5, 4.4, 6.2, 7.4, 7.5, 17.2, 22, 24.4, 23.4},
                1e-14, "gradient");
}

TEST_F(PositionTable, WorksForAnySizeAndAlignment) {
    for (const DType type : kTypes)
        for (const std::int64_t columns : {1, 8, 31, 130, 1152, 4097})
            for (const std::int64_t count : {0, 1, columns > 500 ? 6 : 60})
                for (const std::int64_t shift : {0, 1}) {
                    const std::string what =
                        fmt::format("{} {} x {} from {}", name_of(type), count, columns, shift);
                    const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
                    auto patches = grid(6, 10);
                    patches.resize(static_cast<std::size_t>(count));
                    const InterpolatedRows rows = interpolate_rows(patches, 3);
                    const Tensor index = list(rows.index), weight = list(rows.weight),
                                 table = normal_view(type, 9, columns, shift),
                                 x = normal_view(type, count, columns, shift),
                                 dy = normal_view(type, count, columns, shift),
                                 dtable = normal_view(sums, 9, columns, shift);
                    Numbers expected = values(x), gradient = values(dtable);
                    const Numbers from = values(table), slope = values(dy);
                    for (std::size_t i = 0; i < rows.index.size(); ++i)
                        for (std::size_t c = 0, width = static_cast<std::size_t>(columns); c < width; ++c) {
                            const std::size_t of = static_cast<std::size_t>(rows.index[i]) * width + c,
                                              at = i / 4 * width + c;
                            expected[at] += rows.weight[i] * from[of];
                            gradient[of] += rows.weight[i] * slope[at];
                        }
                    position_embedding(b_, index, weight, table, x);
                    position_embedding_backward(b_, index, weight, dy, dtable, scratch_);
                    expect_each(x, expected, rounding(type), what);
                    expect_each(dtable, gradient, rounding(sums), what + ", gradient");
                    expect_kept_around(what);
                }
}

// With weights that are powers of two, sums are exactly those of a loop over the patches.
TEST_F(PositionTable, SumsGradientsInTheOrderOfPatches) {
    for (const DType type : kTypes)
        for (const auto& [count, table_rows, columns] : {std::tuple{300, 5, 6}, std::tuple{17, 2, 33},
                                                         std::tuple{600, 700, 3}, std::tuple{9, 4, 1152}}) {
            const std::string what = fmt::format("{} of {} {}", count, columns, name_of(type));
            const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
            const InterpolatedRows rows = some_rows(count, table_rows);
            const Tensor index = list(rows.index), weight = list(rows.weight),
                         dy = normal_view(type, count, columns, 0),
                         dtable = view(sums, table_rows, columns, 0, 0.1);
            position_embedding_backward(b_, index, weight, dy, dtable, scratch_);
            const Numbers gradient = values(dy);
            Numbers expected(static_cast<std::size_t>(dtable.size()), rounded(sums, 0.1));
            const auto width = static_cast<std::size_t>(columns);
            for (std::size_t i = 0; i < rows.index.size(); ++i)
                for (std::size_t c = 0; c < width; ++c) {
                    double& sum = expected[static_cast<std::size_t>(rows.index[i]) * width + c];
                    sum = rounded(sums, sum + rows.weight[i] * gradient[i / 4 * width + c]);
                }
            expect_equal(dtable, expected, what);
            expect_kept_around(what);
        }
}

TEST_F(PositionTable, RefusesWhatDoesNotFit) {
    EXPECT_THROW(interpolate_rows(std::vector<GridPosition>{{2, 0, 2, 2}}, 4), Error);
    EXPECT_THROW(interpolate_rows(std::vector<GridPosition>{{0, -1, 2, 2}}, 4), Error);
    const std::vector<std::int32_t> rows{0, 1, 2, 3}, beyond{0, 1, 2, 4};
    const std::vector<double> weights(4, 0.25);
    const Tensor table = filled(DType::f32, {4, 8}), x = filled(DType::f32, {1, 8});
    const Tensor index = list(rows), weight = list(weights);
    EXPECT_THROW(position_embedding(b_, index, filled(DType::f32, {4}), table, x), Error);
    EXPECT_THROW(position_embedding(b_, index, weight, table, filled(DType::f32, {2, 8})), Error);
    EXPECT_THROW(position_embedding(b_, index, weight, filled(DType::bf16, {4, 8}), x), Error);
    EXPECT_THROW(position_embedding_backward(b_, index, weight, filled(DType::bf16, {1, 8}),
                                             filled(DType::bf16, {4, 8}), scratch_),
                 Error);
    if (kOnGpu) return;  // a GPU does not check indices
    EXPECT_THROW(position_embedding(b_, list(beyond), weight, table, x), Error);
}

}  // namespace
}  // namespace maestro::ops
