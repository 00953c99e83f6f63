// Copies of columns between tensors of any types.
#include "ops/columns.hpp"

#include <fmt/core.h>

#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::kTypes;
using testing_support::rounded;

class Columns : public testing_support::Views {
protected:
    struct Case {
        std::int64_t rows, count, from_columns, from, to_columns, to, shift;
        bool from_places, to_places;
    };
    /// Row numbers in descending order, with a gap between each two.
    static std::vector<std::int32_t> places_of(std::int64_t rows) {
        std::vector<std::int32_t> places;
        for (std::int64_t r = rows; r > 0; --r) places.push_back(static_cast<std::int32_t>(2 * r - 1));
        return places;
    }
    void check(const Case& c, DType type, DType out, bool accumulate) {
        const std::string what = fmt::format("{} to {}, {} rows of {} of {} from {} to {} of {} from {}{}",
                                             name_of(type), name_of(out), c.rows, c.count, c.from_columns,
                                             c.from, c.to_columns, c.to, c.shift, accumulate ? ", +=" : "");
        const auto places = places_of(c.rows);
        const std::int64_t source_rows = c.from_places ? 2 * c.rows : c.rows,
                           target_rows = c.to_places ? 2 * c.rows : c.rows;
        const Tensor source = normal_view(type, source_rows, c.from_columns, c.shift);
        if (source.size() > 2) {
            set(source, source.size() / 2, -std::numeric_limits<double>::infinity());
            set(source, source.size() / 2 + 1, 3e38);
        }
        const Tensor target = view(out, target_rows, c.to_columns, c.shift);
        auto expected = values(normal_view(out, target_rows, c.to_columns, 0));
        if (!accumulate)  // the target is NaN before: what is not written remains NaN
            std::fill(expected.begin(), expected.end(), -1);
        if (accumulate) write(target, expected);
        copy_columns(b_, {source, c.from, c.from_places ? list(places) : Tensor{}},
                     {target, c.to, c.to_places ? list(places) : Tensor{}}, c.count, accumulate);
        const auto in = values(source);
        std::vector<bool> written(expected.size());
        for (std::int64_t r = 0; r < c.rows; ++r)
            for (std::int64_t i = 0; i < c.count; ++i) {
                const std::int64_t place = places[static_cast<std::size_t>(r)];
                const auto from = static_cast<std::size_t>((c.from_places ? place : r) * c.from_columns +
                                                           c.from + i),
                           to = static_cast<std::size_t>((c.to_places ? place : r) * c.to_columns + c.to + i);
                const DType sums = out == DType::f64 ? DType::f64 : DType::f32;
                const double value = rounded(sums, in[from]);
                expected[to] = rounded(out, accumulate ? rounded(sums, expected[to] + value) : value);
                written[to] = true;
            }
        const auto found = values(target);
        for (std::size_t i = 0; i < found.size(); ++i) {
            if (written[i] || accumulate)
                ASSERT_EQ(found[i], expected[i]) << what << ", element " << i;
            else
                ASSERT_TRUE(std::isnan(found[i])) << what << ", element " << i;
        }
        expect_kept_around(what);
    }
};

// A sum of two floats is expected to be the exact sum in double, rounded once.
TEST_F(Columns, AreCopiedBetweenAnyTypes) {
    for (const DType type : kTypes)
        for (const DType out : kTypes)
            for (const bool accumulate : {false, true}) {
                check({3, 64, 96, 16, 80, 8, 0, false, false}, type, out, accumulate);
                check({3, 33, 35, 1, 47, 5, 0, true, false}, type, out, accumulate);
                check({2, 16, 32, 16, 24, 8, 3, false, true}, type, out, accumulate);
            }
}

TEST_F(Columns, MayHaveAnySizeAndRows) {
    for (const bool accumulate : {false, true})
        for (const std::int64_t count : {0, 1, 8, 31, 33, 127, 1000, 4097}) {
            const std::int64_t rows = count > 500 ? 2 : 5;
            check({rows, count, count, 0, count, 0, 0, false, false}, DType::f32, DType::bf16, accumulate);
            check({rows, count, count + 8, 8, count + 16, 0, 0, true, true}, DType::bf16, DType::bf16,
                  accumulate);
            check({rows, count, count + 3, 2, count + 1, 1, 1, false, true}, DType::bf16, DType::f32,
                  accumulate);
        }
    for (const std::int64_t rows : {0, 1, 31, 257})
        for (const bool places : {false, true}) {
            check({rows, 8, 16, 8, 24, 8, 0, places, !places}, DType::bf16, DType::bf16, false);
            check({rows, 3, 7, 2, 5, 1, 1, !places, places}, DType::f32, DType::f32, true);
        }
}

TEST_F(Columns, MayBePartlyAligned) {
    for (const std::int64_t from : {0, 4, 8})
        for (const std::int64_t to : {0, 4, 8})
            for (const std::int64_t columns : {16, 20})
                for (const std::int64_t count : {5, 8})
                    for (const DType out : {DType::f32, DType::bf16})
                        check({4, count, columns, from, columns, to, 0, false, false}, DType::bf16, out,
                              true);
}

}  // namespace
}  // namespace maestro::ops
