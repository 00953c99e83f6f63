// Samples of which only the sizes are known: from a CSV file, and drawn from a distribution.
#include "data/sample_lengths.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "support/errors.hpp"

namespace maestro::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Pulse silent;

SampleIndex parsed(const std::string& text) {
    return parse_lengths(text, "lengths.csv", silent);
}

std::string refusal(const std::string& text) {
    const testing_support::Thrown thrown = testing_support::error_of([&] { parsed(text); });
    EXPECT_EQ(thrown.code, ExitCode::bad_data);
    return thrown.what;
}

std::vector<std::pair<int, int>> sizes(const SampleIndex& index, std::int64_t i) {
    std::vector<std::pair<int, int>> sizes;
    for (const Item& item : index.items(i)) sizes.emplace_back(item.height, item.width);
    return sizes;
}

TEST(LengthsFile, HasARowForEachSample) {
    const SampleIndex index =
        parsed("tokens,pictures,targets\n7,,\n5,448x224; 16x32 ,5\n\n 1 , ,0\r\n0,8x8,\n9,,2");
    ASSERT_EQ(index.size(), 5);
    const auto all = [&](auto&& of) {
        std::vector<double> values;
        for (std::int64_t i = 0; i < index.size(); ++i) values.push_back(static_cast<double>(of(i)));
        return values;
    };
    // A picture is one marker among the tokens as stored.
    EXPECT_THAT(all([&](std::int64_t i) { return index.tokens(i); }), ElementsAre(7, 7, 1, 1, 9));
    EXPECT_THAT(all([&](std::int64_t i) { return index.weight(i); }), ElementsAre(6, 5, 0, 0, 2));
    EXPECT_THAT(sizes(index, 1), ElementsAre(std::pair(448, 224), std::pair(16, 32)));
    EXPECT_THAT(sizes(index, 3), ElementsAre(std::pair(8, 8)));
    EXPECT_THAT(index.markers(1), ElementsAre(0, 1));
    EXPECT_TRUE(index.items(4).empty());
}

TEST(LengthsFile, HasItsColumnsInAnyOrder) {
    const SampleIndex index = parsed("\xef\xbb\xbfpictures, tokens\r\n8x9,3\r\n");
    EXPECT_EQ(index.tokens(0), 4);
    EXPECT_EQ(index.weight(0), 2);
    EXPECT_THAT(sizes(index, 0), ElementsAre(std::pair(8, 9)));
    EXPECT_EQ(parsed("tokens\n12\n").weight(0), 11);
}

TEST(LengthsFile, ErrorsHaveLineAndColumn) {
    EXPECT_EQ(refusal("tokens,pictures\n4,\nmany,8x8\n"),
              "lengths.csv:3:1: tokens: 'many' is not a valid number of tokens; allowed: 0 to 1073741824");
    EXPECT_THAT(refusal("tokens,pictures\n4,8x8;8x4097\n"),
                HasSubstr("lengths.csv:2:7: pictures: '8x4097' is no size of a picture; allowed: "
                          "HEIGHTxWIDTH, from 1 to 4096 pixels"));
    for (const char* size : {"8", "x8", "8x", "8x8x8", "-8x8", "8x8;", "8 x8"})
        EXPECT_THAT(refusal(std::string("tokens,pictures\n4,") + size + "\n"), HasSubstr("lengths.csv:2:"));
    EXPECT_THAT(
        refusal("tokens,targets\n4,4\n"),
        HasSubstr("lengths.csv:2:3: targets: '4' is not a number of tokens with loss; allowed: 0 to 3"));
    EXPECT_THAT(refusal("tokens,pictures,targets\n4,8x8,5\n"), HasSubstr("allowed: 0 to 4"));
    EXPECT_THAT(refusal("tokens\n0\n"), HasSubstr("lengths.csv:2:1: tokens: '0' leaves a sample without"));
    EXPECT_THAT(refusal("tokens\n-1\n"), HasSubstr("not a valid number of tokens"));
    EXPECT_THAT(refusal("tokens\n1.5\n"), HasSubstr("not a valid number of tokens"));
    EXPECT_THAT(refusal("tokens\n99999999999999999999\n"), HasSubstr("not a valid number of tokens"));
    EXPECT_THAT(refusal("tokens\n4,5\n"), HasSubstr("lengths.csv:2:1: 2 fields; the first line names 1"));
    EXPECT_THAT(refusal("tokens,words\n4,5\n"),
                HasSubstr("lengths.csv:1:8: 'words' is no column; the first line names the columns tokens, "
                          "pictures, targets"));
    EXPECT_THAT(refusal("tokens,tokens\n4,5\n"), HasSubstr("'tokens' is there twice"));
    EXPECT_THAT(refusal("pictures\n8x8\n"), HasSubstr("there is no column 'tokens'"));
    EXPECT_THAT(refusal("tokens\n\n"), HasSubstr("holds no samples"));
    EXPECT_THAT(refusal(""), HasSubstr("lengths.csv:1:1: holds no samples"));
    const testing_support::Thrown missing =
        testing_support::error_of([] { read_lengths("/nowhere/lengths.csv", silent); });
    EXPECT_EQ(missing.code, ExitCode::input_missing);
    EXPECT_THAT(missing.what, HasSubstr("/nowhere/lengths.csv"));
}

TEST(LengthsFile, AnyBytesAreReadOrRefused) {
    int files = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(MAESTRO_SOURCE_DIR "/tests/fuzz/corpus/lengths")) {
        std::ifstream file(entry.path(), std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        for (std::size_t end = 0; end <= text.size(); ++end) try {  // whole and cut short
                EXPECT_GE(parsed(text.substr(0, end)).size(), 1);
            } catch (const Error& error) {
                EXPECT_EQ(error.code(), ExitCode::bad_data);
            }
        ++files;
    }
    EXPECT_GE(files, 3);
}

TEST(LengthsFile, TenErrorsAreEnough) {
    std::string text = "tokens\n";
    for (int i = 0; i < 100; ++i) text += "x\n";
    const std::string message = refusal(text);
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 9);
}

/// One with all that a distribution may have.
SampleDistribution mixed() {
    return {.samples = 6,
            .seed = 7,
            .shape = "lognormal",
            .tokens = 600,
            .spread = 1,
            .least_tokens = 32,
            .most_tokens = 8192,
            .picture_share = 0.7,
            .pictures = 3,
            .picture_height = {224, 1344},
            .picture_width = {100, 500},
            .picture_unit = 32};
}

struct Drawn {
    std::int64_t text = 0;
    std::vector<std::pair<int, int>> pictures;
    bool operator==(const Drawn&) const = default;
};

std::vector<Drawn> drawn(const SampleDistribution& distribution) {
    const SampleIndex index = draw_lengths(distribution, silent);
    std::vector<Drawn> samples;
    for (std::int64_t i = 0; i < index.size(); ++i) {
        samples.push_back(
            {index.tokens(i) - static_cast<std::int64_t>(index.items(i).size()), sizes(index, i)});
        EXPECT_EQ(index.weight(i), static_cast<double>(samples.back().text - 1));
    }
    return samples;
}

/// What docs/deck.md says, written in Python apart from this program.
TEST(DrawnLengths, AreThoseOfTheDocument) {
    using Pictures = std::vector<std::pair<int, int>>;
    EXPECT_THAT(drawn(mixed()),
                ElementsAre(Drawn{1279, Pictures{{704, 448}, {1152, 448}, {928, 416}}},
                            Drawn{654, Pictures{{416, 480}}},
                            Drawn{4168, Pictures{{1088, 160}, {1184, 448}, {704, 416}}},
                            Drawn{324, Pictures{{352, 416}, {1344, 128}}}, Drawn{1496, Pictures{{1248, 128}}},
                            Drawn{545, Pictures{{416, 192}, {544, 352}, {1184, 352}}}));
    EXPECT_THAT(drawn({.samples = 6, .seed = 7, .shape = "uniform", .least_tokens = 10, .most_tokens = 20}),
                ElementsAre(Drawn{18, {}}, Drawn{15, {}}, Drawn{11, {}}, Drawn{13, {}}, Drawn{15, {}},
                            Drawn{18, {}}));
}

TEST(DrawnLengths, ASampleDependsOnItsNumberAndItsKeysAlone) {
    SampleDistribution more = mixed();
    more.samples = 40;
    std::vector<Drawn> longer = drawn(more), first = drawn(mixed());
    EXPECT_EQ(drawn(more), longer);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), longer.begin()));
    SampleDistribution other = more;
    other.seed = 8;
    EXPECT_NE(drawn(other), longer);
    other = more;
    other.picture_share = 0;
    const std::vector<Drawn> texts = drawn(other);
    for (std::size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(texts[i].text, longer[i].text);
        EXPECT_TRUE(texts[i].pictures.empty());
    }
}

double mean_of(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
    const double mean = mean_of(values);
    double sum = 0;
    for (const double value : values) sum += (value - mean) * (value - mean);
    return std::sqrt(sum / static_cast<double>(values.size()));
}

constexpr std::int64_t kMany = 20000;
/// Five standard errors of a mean of kMany values with this deviation.
double tolerance(double deviation) {
    return 5 * deviation / std::sqrt(static_cast<double>(kMany));
}

TEST(DrawnLengths, UniformOnesHaveTheMeanAndTheBounds) {
    const SampleDistribution d{
        .samples = kMany, .seed = 3, .shape = "uniform", .least_tokens = 100, .most_tokens = 300};
    std::vector<double> texts;
    for (const Drawn& sample : drawn(d)) texts.push_back(static_cast<double>(sample.text));
    const double deviation = std::sqrt((201.0 * 201.0 - 1) / 12);
    EXPECT_NEAR(mean_of(texts), 200, tolerance(deviation));
    EXPECT_NEAR(deviation_of(texts), deviation, tolerance(deviation));
    EXPECT_EQ(*std::min_element(texts.begin(), texts.end()), 100);
    EXPECT_EQ(*std::max_element(texts.begin(), texts.end()), 300);
}

TEST(DrawnLengths, LognormalOnesHaveTheMedianTheSpreadAndTheBounds) {
    SampleDistribution d{.samples = kMany,
                         .seed = 3,
                         .shape = "lognormal",
                         .tokens = 2000,
                         .spread = 0.5,
                         .least_tokens = 1,
                         .most_tokens = 1 << 20};
    std::vector<double> logarithms;
    std::int64_t above = 0;
    for (const Drawn& sample : drawn(d)) {
        logarithms.push_back(std::log(static_cast<double>(sample.text)));
        above += sample.text > 2000 ? 1 : 0;
    }
    EXPECT_NEAR(mean_of(logarithms), std::log(2000), tolerance(0.5));
    EXPECT_NEAR(deviation_of(logarithms), 0.5, tolerance(0.5));
    EXPECT_NEAR(static_cast<double>(above) / kMany, 0.5, tolerance(0.5));
    // Two deviations above and one below the median.
    d.most_tokens = std::llround(2000 * std::exp(1.0));
    d.least_tokens = std::llround(2000 * std::exp(-0.5));
    std::int64_t most = 0, least = 0;
    for (const Drawn& sample : drawn(d)) {
        EXPECT_GE(sample.text, d.least_tokens);
        EXPECT_LE(sample.text, d.most_tokens);
        most += sample.text == d.most_tokens ? 1 : 0;
        least += sample.text == d.least_tokens ? 1 : 0;
    }
    const auto beyond = [](double deviations) { return std::erfc(deviations / std::sqrt(2.0)) / 2; };
    EXPECT_NEAR(static_cast<double>(most) / kMany, beyond(2), tolerance(0.15));
    EXPECT_NEAR(static_cast<double>(least) / kMany, beyond(1), tolerance(0.37));
}

/// Far beyond what a whole number holds.
TEST(DrawnLengths, AWideSpreadStaysWithinTheBounds) {
    const SampleDistribution d{.samples = 1000,
                               .shape = "lognormal",
                               .tokens = 1 << 20,
                               .spread = 10,
                               .least_tokens = 5,
                               .most_tokens = 1 << 20};
    for (const Drawn& sample : drawn(d)) {
        EXPECT_GE(sample.text, 5);
        EXPECT_LE(sample.text, 1 << 20);
    }
}

TEST(DrawnLengths, PicturesHaveTheirShareTheirNumberAndTheirSides) {
    SampleDistribution d = mixed();
    d.samples = kMany;
    d.shape = "fixed";
    d.tokens = 9;
    d.picture_share = 0.3;
    d.pictures = 5;
    std::vector<double> numbers, heights;
    for (const Drawn& sample : drawn(d)) {
        EXPECT_EQ(sample.text, 9);
        if (!sample.pictures.empty()) numbers.push_back(static_cast<double>(sample.pictures.size()));
        for (const auto& [height, width] : sample.pictures) {
            EXPECT_EQ(height % 32, 0);
            EXPECT_EQ(width % 32, 0);
            EXPECT_TRUE(height >= 224 && height <= 1344 && width >= 128 && width <= 480);
            heights.push_back(height);
        }
    }
    EXPECT_NEAR(static_cast<double>(numbers.size()) / kMany, 0.3, tolerance(std::sqrt(0.3 * 0.7)));
    EXPECT_NEAR(mean_of(numbers), 3, tolerance(std::sqrt(2.0 / 0.3)));
    EXPECT_NEAR(mean_of(heights), (224 + 1344) / 2, tolerance(32 * std::sqrt((36.0 * 36 - 1) / 12 / 0.9)));
    d.picture_share = 1;
    d.picture_height = d.picture_width = {448};
    d.picture_unit = 1;
    for (const Drawn& sample : drawn(d)) {
        ASSERT_FALSE(sample.pictures.empty());
        EXPECT_EQ(sample.pictures.front(), std::pair(448, 448));
    }
}

TEST(SampleLengths, AreReadAsMarkersAndOneTokenForAllText) {
    const SampleLengths samples("[data.lengths]", parsed("tokens,pictures,targets\n3,8x4;2x2,2\n4,,\n"), 0);
    EXPECT_EQ(samples.markers().of(Item::Kind::picture), 0);
    EXPECT_FALSE(samples.contents());
    Sample sample;
    samples.read(0, sample, SampleFields::all, silent);
    EXPECT_THAT(sample.tokens, ElementsAre(0, 0, 1, 1, 1));
    EXPECT_THAT(sample.weights, ElementsAre(0, 0, 0, 1, 1));
    EXPECT_THAT(sample.flags, ElementsAre(0, 0, 0, 0, 0));
    ASSERT_EQ(sample.items.size(), 2);
    EXPECT_EQ(sample.items[0].item, (Item{8, 4}));
    samples.read(1, sample, SampleFields::text, silent);
    EXPECT_THAT(sample.tokens, ElementsAre(1, 1, 1, 1));
    EXPECT_THAT(sample.weights, ElementsAre(0, 1, 1, 1));
    EXPECT_TRUE(sample.items.empty());
    samples.read(0, sample, SampleFields::pixels, silent);
    EXPECT_TRUE(sample.tokens.empty());
    EXPECT_EQ(sample.items.size(), 2);
    const SampleLengths other("b", parsed("tokens,pictures\n3,8x4;2x2\n"), 151655);
    other.read(0, sample, SampleFields::text, silent);
    EXPECT_THAT(sample.tokens, ElementsAre(151655, 151655, 0, 0, 0));
}

TEST(SampleLengths, AreIdentifiedByTheirSizes) {
    const auto identity = [](const std::string& text) {
        return SampleLengths("a", parsed(text), 0).identity();
    };
    const std::uint64_t one = identity("tokens,pictures,targets\n3,8x4,2\n4,,\n");
    EXPECT_EQ(identity("pictures,tokens\n8x4,3\n,4\n"), one);
    for (const char* other : {"3,8x4,3\n4,,\n", "3,4x8,2\n4,,\n", "3,8x4,2\n5,,3\n", "3,8x4,2\n"})
        EXPECT_NE(identity(std::string("tokens,pictures,targets\n") + other), one);
}

}  // namespace
}  // namespace maestro::data
