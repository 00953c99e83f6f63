// What modules see of samples: the same numbers in the same memory.
#include "train/step/sample_views.hpp"

#include <gtest/gtest.h>

namespace maestro::train {
namespace {

data::Sample sample(std::int64_t id, std::int32_t tokens, std::vector<data::StoredItem> pictures) {
    data::Sample made;
    made.id = id;
    for (std::int32_t i = 0; i < tokens; ++i) {
        made.tokens.push_back(static_cast<std::int32_t>(100 * id) + i);
        made.weights.push_back(0.5f * static_cast<float>(i));
        made.flags.push_back(static_cast<std::uint8_t>(i % 2));
    }
    made.items = std::move(pictures);
    return made;
}

TEST(SampleViews, PointIntoTheSamples) {
    const std::vector<data::Sample> samples = {
        sample(7, 3, {{{2, 3}, {1, 2, 3, 4, 5, 6}}, {{1, 1}, {9}}}), sample(2, 5, {}),
        sample(4, 0, {{{1, 2}, {7, 8}}}),  // pixels alone
        sample(5, 1, {{{4, 6}, {}}}),      // text alone: sizes of pictures come without them
    };
    const SampleViews views(samples);
    ASSERT_EQ(views.all().size(), samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const data::Sample& stored = samples[i];
        const model::SampleView& seen = views.all()[i];
        SCOPED_TRACE(stored.id);
        EXPECT_EQ(seen.id, stored.id);
        EXPECT_EQ(seen.tokens.data(), stored.tokens.data());
        EXPECT_EQ(seen.tokens.size(), stored.tokens.size());
        EXPECT_EQ(seen.weights.data(), stored.weights.data());
        EXPECT_EQ(seen.weights.size(), stored.weights.size());
        EXPECT_EQ(seen.flags.data(), stored.flags.data());
        EXPECT_EQ(seen.flags.size(), stored.flags.size());
        ASSERT_EQ(seen.items.size(), stored.items.size());
        for (std::size_t p = 0; p < stored.items.size(); ++p) {
            EXPECT_EQ(seen.items[p].data, stored.items[p].data.data());
            EXPECT_EQ(seen.items[p].item, stored.items[p].item);
        }
    }
}

/// The views own their lists of pictures, and those stay where they are as others are added.
TEST(SampleViews, OfManySamplesKeepTheirPictures) {
    std::vector<data::Sample> samples;
    for (int i = 0; i < 1000; ++i) samples.push_back(sample(i, 1, {{{i + 1, 1}, {}}}));
    const SampleViews views(samples);
    for (int i = 0; i < 1000; ++i) {
        const auto& pictures = views.all()[static_cast<std::size_t>(i)].items;
        ASSERT_EQ(pictures.size(), 1u);
        ASSERT_EQ(pictures[0].item.height, i + 1);
    }
    EXPECT_TRUE(SampleViews({}).all().empty());
}

}  // namespace
}  // namespace maestro::train
