// Embedding, row copies and patches: every element must arrive at its place.
#include "ops/rows.hpp"
#include "ops/embedding.hpp"
#include "ops/patchify.hpp"
#include "support/views.hpp"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "base/error.hpp"

namespace maestro::ops {
namespace {

using testing_support::kOnGpu;
using testing_support::kTypes;
using testing_support::rounded;

class Rows : public testing_support::Views {
protected:
    /// Returns ids below `vocabulary`, some of them several times, and some -1.
    static std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t vocabulary) {
        const Random numbers(5, "ids");
        std::vector<std::int32_t> ids;
        for (std::int64_t i = 0; i < count; ++i) {
            const double x = numbers.uniform(static_cast<std::uint64_t>(i));
            ids.push_back(static_cast<std::int32_t>(x * x * static_cast<double>(vocabulary + 1)) - 1);
        }
        return ids;
    }
    std::vector<std::byte> bytes_of(const Tensor& tensor) {
        std::vector<std::byte> bytes(tensor.bytes());
        if (tensor.size() > 0) b_.download(tensor, bytes.data());
        return bytes;
    }
};

TEST_F(Rows, EmbeddingReadsRowsAndAddsTheirGradients) {
    const std::vector<std::int32_t> ids{3, -1, 0, 3, 3};
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
        const Tensor table = random(type, {4, 6}), y = filled(type, {5, 6}, 9),
                     dtable = filled(sums, {4, 6}, 1);
        embedding(b_, list(ids), table, y);
        const Tensor dy = filled(type, {5, 6}, 0.5);
        embedding_backward(b_, list(ids), dy, dtable, scratch_);
        for (std::int64_t t = 0; t < 5; ++t)
            for (std::int64_t c = 0; c < 6; ++c) {
                const std::int64_t id = ids[static_cast<std::size_t>(t)];
                EXPECT_EQ(get(y, t * 6 + c), id < 0 ? 0 : get(table, id * 6 + c));
            }
        for (std::int64_t id = 0; id < 4; ++id)
            EXPECT_EQ(get(dtable, id * 6),
                      1 + 0.5 * static_cast<double>(std::count(ids.begin(), ids.end(), id)));
    }
    EXPECT_THROW(embedding(b_, list(ids), random(DType::f32, {4, 6}), filled(DType::f32, {0, 6})), Error);
    const std::vector<std::int32_t> beyond{4};
    if (kOnGpu) return;  // a GPU does not check indices
    EXPECT_THROW(embedding(b_, list(beyond), random(DType::f32, {4, 6}), filled(DType::f32, {1, 6})), Error);
}

TEST_F(Rows, EmbeddingWorksForRowsOfAnySize) {
    for (const DType type : kTypes)
        for (const std::int64_t columns : {1, 8, 31, 33, 127, 128, 1000, 4097})
            for (const std::int64_t count : {0, 1, columns > 500 ? 5 : 77})
                for (const std::int64_t shift : {0, 1}) {
                    const std::string what = fmt::format("{} ids of {} {}", count, columns, name_of(type));
                    const auto ids = some_ids(count, 9);
                    const Tensor table = normal_view(type, 9, columns, shift),
                                 y = view(type, count, columns, shift);
                    embedding(b_, list(ids), table, y);
                    const auto from = values(table), found = values(y);
                    for (std::int64_t i = 0; i < y.size(); ++i) {
                        const std::int64_t id = ids[static_cast<std::size_t>(i / columns)];
                        ASSERT_EQ(found[static_cast<std::size_t>(i)],
                                  id < 0 ? 0 : from[static_cast<std::size_t>(id * columns + i % columns)])
                            << what << ", element " << i;
                    }
                    expect_kept_around(what);
                }
}

// The sums are exactly those of a loop over the rows, so they are taken in the same order.
TEST_F(Rows, GradientsOfAnEmbeddingAreAddedInRowOrder) {
    struct Case {
        std::int64_t count, vocabulary, columns, shift;
    };
    for (const DType type : kTypes)
        for (const Case c : {Case{300, 5, 6, 0}, Case{300, 2, 33, 1}, Case{1100, 700, 3, 0},
                             Case{2050, 40, 8, 0}, Case{33, 4, 127, 0}, Case{65, 1, 128, 0},
                             Case{40, 9, 260, 3}, Case{32, 3, 1000, 0}, Case{7, 3, 4097, 0}, Case{1, 3, 1, 0},
                             Case{0, 3, 8, 0}, Case{5000, 511, 2, 0}, Case{1030, 300'000, 1, 0}}) {
            const std::string what =
                fmt::format("{} ids below {} of {} {}", c.count, c.vocabulary, c.columns, name_of(type));
            const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
            const auto ids = some_ids(c.count, c.vocabulary);
            const Tensor dy = normal_view(type, c.count, c.columns, c.shift);
            const Tensor dtable = view(sums, c.vocabulary, c.columns, c.shift, 0.1),
                         again = view(sums, c.vocabulary, c.columns, 0, 0.1);
            embedding_backward(b_, list(ids), dy, dtable, scratch_);
            embedding_backward(b_, list(ids), dy, again, scratch_);
            const auto gradient = values(dy);
            std::vector<double> expected(static_cast<std::size_t>(dtable.size()), rounded(sums, 0.1));
            for (std::int64_t i = 0; i < dy.size(); ++i) {
                const std::int64_t id = ids[static_cast<std::size_t>(i / c.columns)];
                if (id < 0) continue;
                double& sum = expected[static_cast<std::size_t>(id * c.columns + i % c.columns)];
                sum = rounded(sums, sum + gradient[static_cast<std::size_t>(i)]);
            }
            expect_equal(dtable, expected, what);
            expect_equal(again, expected, what + ", elsewhere");
            expect_kept_around(what);
        }
}

// nvcc's builds have a second form of the sort; on the simulated runtime it is refused.
TEST_F(Rows, EitherFormOfTheSortGivesTheSameSums) {
    if (!kOnGpu) GTEST_SKIP() << "a kernel of GPUs";
    constexpr const char* kVariable = "MAESTRO_KERNEL_FORMS";
    const char* const before = std::getenv(kVariable);
    const std::string kept = before ? before : "portable";
    for (const std::int64_t count : {1, 1000, 20'000}) {
        const auto ids = some_ids(count, 700);
        const Tensor dy = normal_view(DType::bf16, count, 8, 0);
        const auto sums_by = [&](const char* form) {
            setenv(kVariable, form, 1);
            const Tensor dtable = view(DType::f32, 700, 8, 0, 0.1);
            embedding_backward(b_, list(ids), dy, dtable, scratch_);
            return values(dtable);
        };
        const auto expected = sums_by("portable");
        try {
            EXPECT_EQ(sums_by("nvcc"), expected) << count << " ids";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::usage);
            EXPECT_NE(std::string(error.what()).find("nvcc did not compile the kernels"), std::string::npos);
        }
        EXPECT_THROW(sums_by("fast"), Error);
        for (const char* form : {"portable", "nvcc"}) {
            setenv(kVariable, form, 1);
            const bool named = b_.describe().find("second forms of kernels") != std::string::npos;
            EXPECT_EQ(named, std::string(form) == "nvcc") << "the log line of the device";
        }
        setenv(kVariable, kept.c_str(), 1);
    }
}

TEST_F(Rows, EmbeddingIgnoresIdsOfOtherRanks) {
    const std::vector<std::int32_t> ids(50, -1);
    const Tensor dtable = view(DType::f32, 3, 16, 0, 2);
    embedding_backward(b_, list(ids), filled(DType::bf16, {50, 16}, kPoison), dtable, scratch_);
    expect_equal(dtable, std::vector<double>(48, 2), "negative ids");
    expect_kept_around("negative ids");
}

TEST_F(Rows, AreCopiedByteForByteForAnyTypeAndSize) {
    for (const DType type : {DType::u8, DType::bf16, DType::i32, DType::f32, DType::f64})
        for (const std::int64_t columns : {1, 2, 16, 31, 33, 127, 1000, 4097})
            for (const std::int64_t shift : {0, 1, 4}) {
                const std::string what = fmt::format("{} columns of {} {}", columns, name_of(type), shift);
                const std::int64_t count = columns > 500 ? 3 : 10, all = 2 * count + 1;
                std::vector<std::int32_t> places;
                for (std::int64_t i = 0; i < count; ++i)
                    places.push_back(static_cast<std::int32_t>((i * 2 + 5) % all));
                const auto size = static_cast<std::int64_t>(size_of(type)), row = columns * size;
                const auto bytes = [&](std::int64_t rows, std::uint8_t factor) {
                    std::vector<std::uint8_t> numbers(
                        static_cast<std::size_t>(shift * size + rows * row + 64));
                    for (std::size_t i = 0; i < numbers.size(); ++i)
                        numbers[i] = static_cast<std::uint8_t>(i * factor + i / 251);
                    return numbers;
                };
                const auto narrow = bytes(count, 3), wide = bytes(all, 5);
                const Tensor few = list(narrow), many = list(wide), back = list(narrow);
                const auto view = [&](const Tensor& t, std::int64_t rows) {
                    return Tensor(t.as<std::uint8_t>() + shift * size, type, {rows, columns});
                };
                scatter_rows(b_, view(few, count), list(places), view(many, all));
                std::vector<std::uint8_t> expected = wide;
                for (std::int64_t r = 0; r < count; ++r)
                    std::copy_n(narrow.begin() + shift * size + r * row, row,
                                expected.begin() + shift * size + places[static_cast<std::size_t>(r)] * row);
                ASSERT_EQ(bytes_of(many), bytes_of(list(expected))) << what;
                std::reverse(places.begin(), places.end());
                gather_rows(b_, view(many, all), list(places), view(back, count));
                std::vector<std::uint8_t> gathered = narrow;
                for (std::int64_t r = 0; r < count; ++r)
                    std::copy_n(expected.begin() + shift * size + places[static_cast<std::size_t>(r)] * row,
                                row, gathered.begin() + shift * size + r * row);
                ASSERT_EQ(bytes_of(back), bytes_of(list(gathered))) << what;
                arena_.reset();
            }
}

TEST_F(Rows, EmptyCopiesDoNothing) {
    const Tensor wide = filled(DType::f32, {6, 5}, 7), none = filled(DType::f32, {0, 5});
    scatter_rows(b_, none, list(std::vector<std::int32_t>{}), wide);
    gather_rows(b_, wide, list(std::vector<std::int32_t>{}), none);
    scatter_rows(b_, {}, list(std::vector<std::int32_t>{}), wide);
    expect_equal(wide, std::vector<double>(30, 7), "no rows");
}

TEST_F(Rows, GatherAndScatterAreInverse) {
    const std::vector<std::int32_t> places{4, 0, 2};
    const Tensor source = random(DType::f32, {3, 5}), wide = filled(DType::f32, {6, 5}, 7),
                 back = filled(DType::f32, {3, 5});
    scatter_rows(b_, source, list(places), wide);
    gather_rows(b_, wide, list(places), back);
    EXPECT_EQ(values(back), values(source));
    for (const std::int64_t untouched : {1, 3, 5}) EXPECT_EQ(get(wide, untouched * 5), 7);
    const std::vector<std::int32_t> beyond{0, 1, 6};
    if (kOnGpu) return;  // a GPU does not check indices
    EXPECT_THROW(scatter_rows(b_, source, list(beyond), wide), Error);
    EXPECT_THROW(gather_rows(b_, wide, list(beyond), back), Error);
}

// A picture of 3 x 5 pixels with patches of 2, merged 2 x 2, is padded to 4 x 8 pixels: two blocks of four
// patches.
TEST_F(Rows, PatchesAreOrderedInBlocksAndEdgesAreRepeated) {
    std::vector<std::uint8_t> pixels(15);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(10 * i);
    ASSERT_EQ(picture_patches(3, 5, 2, 2), 8);
    const Tensor patches = filled(DType::f64, {8, 4});
    patchify(b_, list(pixels), 3, 5, 1, 2, 2, PatchOrder::pixels, 0, patches);
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
    patchify(b_, list(pixels), 1, 2, 3, 2, 1, PatchOrder::pixels, 0, patches);
    const std::vector<double> row{-1, -0.6, -0.2, 0.2, 0.6, 1};
    for (std::size_t i = 0; i < 12; ++i)
        EXPECT_NEAR(get(patches, static_cast<std::int64_t>(i)), row[i % 6], 1e-12)
            << "the second row repeats the first";
}

TEST_F(Rows, PicturesOfAnySizeBecomePatches) {
    struct Case {
        std::int64_t height, width, channels, patch, merge, first, shift;
    };
    for (const DType type : kTypes)
        for (const PatchOrder order : {PatchOrder::pixels, PatchOrder::film})
            for (const Case c :
                 {Case{1, 1, 1, 1, 1, 0, 0}, Case{7, 9, 3, 2, 2, 0, 0}, Case{7, 9, 3, 2, 2, 5, 0},
                  Case{29, 31, 3, 14, 1, 1, 0}, Case{28, 56, 3, 14, 2, 0, 0}, Case{33, 17, 4, 4, 2, 3, 1},
                  Case{5, 50, 3, 3, 3, 7, 0}, Case{64, 1, 1, 8, 2, 2, 3}, Case{2, 127, 2, 1, 1, 9, 0}}) {
                const std::string what = fmt::format(
                    "{} x {} x {}, patches of {} by {} from {}, {}{}", c.height, c.width, c.channels, c.patch,
                    c.merge, c.first, name_of(type), order == PatchOrder::film ? ", film" : "");
                const Random numbers(3, "pixels");
                std::vector<std::uint8_t> pixels;
                for (std::int64_t i = 0; i < c.height * c.width * c.channels; ++i)
                    pixels.push_back(
                        static_cast<std::uint8_t>(256 * numbers.uniform(static_cast<std::uint64_t>(i))));
                std::vector<std::int32_t> y, x;
                patch_positions(c.height, c.width, c.patch, c.merge, y, x);
                const std::int64_t all = picture_patches(c.height, c.width, c.patch, c.merge),
                                   columns = frames_of(order) * c.patch * c.patch * c.channels,
                                   count = all - c.first - (all > c.first + 1 ? 1 : 0);
                ASSERT_EQ(static_cast<std::size_t>(all), y.size()) << what;
                const Tensor patches = view(type, count, columns, c.shift);
                patchify(b_, list(pixels), c.height, c.width, c.channels, c.patch, c.merge, order, c.first,
                         patches);
                const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
                std::vector<double> expected;
                for (std::int64_t p = c.first; p < c.first + count; ++p)
                    for (std::int64_t e = 0; e < columns; ++e) {
                        // By frames, columns are [channel, frame, row, column], else [row, column, channel].
                        const bool film = order == PatchOrder::film;
                        const std::int64_t pixel = film ? e % (c.patch * c.patch) : e / c.channels,
                                           channel = film ? e / (2 * c.patch * c.patch) : e % c.channels;
                        const std::int64_t row = y[static_cast<std::size_t>(p)] * c.patch + pixel / c.patch,
                                           column =
                                               x[static_cast<std::size_t>(p)] * c.patch + pixel % c.patch;
                        const std::int64_t at =
                            (std::min(row, c.height - 1) * c.width + std::min(column, c.width - 1)) *
                                c.channels +
                            channel;
                        const double value = pixels[static_cast<std::size_t>(at)];
                        expected.push_back(rounded(type, rounded(sums, rounded(sums, value / 127.5) - 1)));
                    }
                expect_equal(patches, expected, what);
                expect_kept_around(what);
            }
}

TEST_F(Rows, NoPatchesFillNothing) {
    const std::vector<std::uint8_t> pixels(12, 9);
    patchify(b_, list(pixels), 2, 2, 3, 2, 1, PatchOrder::pixels, 1, filled(DType::f32, {0, 12}));
}

}  // namespace
}  // namespace maestro::ops
