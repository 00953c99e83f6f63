// The tiles into which the CPU divides the GEMMs of groups.
#include "backend/cpu/grouped_gemm.hpp"

#include <gtest/gtest.h>

#include <map>

namespace maestro::backend {
namespace {

using Form = Backend::GroupedGemm::Form;

constexpr std::int64_t kInputs = 640, kOutputs = 384;

std::int64_t work_of(const Backend::Gemm& g) {
    return g.m * g.n * g.k;
}

/// The GEMMs of groups of these many rows. No element of the matrices is accessed.
struct Grouped {
    Grouped(Form form, const std::vector<std::int64_t>& rows) {
        for (const std::int64_t count : rows) begin.push_back(begin.back() + count);
        gemm = {.form = form,
                .a = &place[0],
                .b = &place[1],
                .y = &place[2],
                .begin = begin,
                .inputs = kInputs,
                .outputs = kOutputs,
                .in = DType::f32,
                .out = DType::f32};
    }
    float place[3]{};
    std::vector<std::int64_t> begin{0};
    Backend::GroupedGemm gemm{};
};

TEST(GroupedGemm, TilesCoverTheResultOnce) {
    for (const Form form : {Form::output, Form::input_gradient, Form::weight_gradient})
        for (const std::vector<std::int64_t>& rows :
             {std::vector<std::int64_t>{3000}, {0, 700, 0, 1, 65}, {128, 129, 127}, {0, 0}}) {
            const Grouped grouped(form, rows);
            const Backend::GroupedGemm& g = grouped.gemm;
            std::map<std::int64_t, int> covered;  // by the number of the element
            std::int64_t work = 0;
            for (const Backend::Gemm& tile : tiles_of(g)) {
                const std::int64_t first = static_cast<const float*>(tile.y) - static_cast<float*>(g.y);
                for (std::int64_t r = 0; r < tile.m; ++r)
                    for (std::int64_t c = 0; c < tile.n; ++c) ++covered[first + r * tile.ldy + c];
                work += work_of(tile);
            }
            EXPECT_EQ(work, g.begin.back() * kInputs * kOutputs);
            std::int64_t elements = 0;
            for (std::size_t group = 0; group < g.groups(); ++group)
                if (rows[group] > 0) elements += g.of_group(group).m * g.of_group(group).n;
            EXPECT_EQ(static_cast<std::int64_t>(covered.size()), elements);
            for (const auto& [element, times] : covered) ASSERT_EQ(times, 1) << element;
        }
}

TEST(GroupedGemm, TilesAreBalancedThoughOneGroupHasAllRows) {
    for (const Form form : {Form::output, Form::input_gradient, Form::weight_gradient})
        for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{0, 4096, 0},
                                                      {1000, 4, 4, 4, 4},
                                                      std::vector<std::int64_t>(64, 256)}) {
            const Grouped grouped(form, rows);
            const auto tiles = tiles_of(grouped.gemm);
            const std::int64_t all = grouped.gemm.begin.back() * kInputs * kOutputs;
            // Sides have a least length, which limits the number of tiles of a weight gradient.
            EXPECT_LE(work_of(tiles.front()) * 15, all);
            for (std::size_t i = 1; i < tiles.size(); ++i)
                EXPECT_LE(work_of(tiles[i]), work_of(tiles[i - 1]));
        }
}

TEST(GroupedGemm, GroupsOfSimilarSizeAreWholeTiles) {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < 64; ++i) rows.push_back(240 + i);
    for (const Form form : {Form::output, Form::input_gradient, Form::weight_gradient})
        EXPECT_EQ(tiles_of(Grouped(form, rows).gemm).size(), 64u);
}

}  // namespace
}  // namespace maestro::backend
