// The loads of experts in a step: closed forms of their extremes and entropy, and which layers have a row.
#include "train/step/expert_loads.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "support/errors.hpp"

namespace maestro::train {
namespace {

using testing_support::error_of;

TEST(ExpertRow, OfEqualLoadsIsBalanced) {
    for (const std::size_t experts : {1u, 2u, 12u, 128u}) {
        const std::vector<std::int64_t> counts(experts, 37);
        const io::ExpertRow row = expert_row(5, 1, 3, counts);
        EXPECT_EQ(row.step, 5);
        EXPECT_EQ(row.section, 1);
        EXPECT_EQ(row.layer, 3);
        EXPECT_EQ(row.largest, 1);
        EXPECT_EQ(row.smallest, 1);
        EXPECT_NEAR(row.entropy, 1, 1e-12);
    }
}

TEST(ExpertRow, HasTheExtremesOverTheMeanAndTheEntropyOverTheLargest) {
    // Of 12 choices, 6, 3, 3 and 0: 1/2, 1/4, 1/4 and nothing have 3/2 bits, and four equal shares 2 bits.
    const io::ExpertRow uneven = expert_row(1, 0, 0, std::array<std::int64_t, 4>{3, 6, 0, 3});
    EXPECT_EQ(uneven.largest, 2);
    EXPECT_EQ(uneven.smallest, 0);
    EXPECT_NEAR(uneven.entropy, 0.75, 1e-12);
    const io::ExpertRow close = expert_row(1, 0, 0, std::array<std::int64_t, 2>{1, 3});
    EXPECT_EQ(close.largest, 1.5);
    EXPECT_EQ(close.smallest, 0.5);
    EXPECT_NEAR(close.entropy, 2 - 0.75 * std::log2(3.0), 1e-12);
    const io::ExpertRow single = expert_row(1, 0, 0, std::array<std::int64_t, 3>{0, 0, 8});
    EXPECT_EQ(single.largest, 3);
    EXPECT_EQ(single.entropy, 0);
}

TEST(ExpertRow, NeedsAChoice) {
    EXPECT_EQ(error_of([] { expert_row(1, 0, 0, std::array<std::int64_t, 2>{}); }).code,
              ExitCode::broken_invariant);
}

/// A section without experts, one of three layers with two experts in the last two, and one of two layers
/// with three experts in each.
std::vector<model::ModelSpec> models() {
    std::vector<model::ModelSpec> models(3);
    models[0].layers = 4;
    models[1].layers = 3;
    models[1].experts.count = 2;
    models[1].experts.dense_layers = 1;
    models[2].layers = 2;
    models[2].experts.count = 3;
    return models;
}

TEST(ExpertLoads, AddUpByLayerAndLeaveOutLayersWithoutChoices) {
    ExpertLoads loads(models());
    loads.add(
        1, std::vector<model::ExpertLoad>{{.layer = 1, .choices = {1, 3}}, {.layer = 2, .choices = {0, 0}}});
    loads.add(1, std::vector<model::ExpertLoad>{{.layer = 1, .choices = {2, 2}}});  // of another stage
    loads.add(2, std::vector<model::ExpertLoad>{{.layer = 1, .choices = {0, 4, 2}}});
    const std::vector<io::ExpertRow> rows = loads.rows(9);
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_THAT((std::array{static_cast<int>(rows[0].step), rows[0].section, rows[0].layer}),
                testing::ElementsAre(9, 1, 1));
    EXPECT_EQ(rows[0].largest, 1.25);
    EXPECT_EQ(rows[0].smallest, 0.75);
    EXPECT_THAT((std::array{rows[1].section, rows[1].layer}), testing::ElementsAre(2, 1));
    EXPECT_EQ(rows[1].largest, 2);
    EXPECT_EQ(rows[1].smallest, 0);
}

TEST(ExpertLoads, OfLayersThatHaveNoneAreRefused) {
    const auto added = [](int section, int layer, std::size_t experts) {
        ExpertLoads loads(models());
        loads.add(section, std::vector<model::ExpertLoad>{
                               {.layer = layer, .choices = std::vector<std::int64_t>(experts, 1)}});
    };
    added(1, 2, 2);
    EXPECT_EQ(error_of([&] { added(0, 0, 2); }).code, ExitCode::broken_invariant);
    EXPECT_EQ(error_of([&] { added(1, 0, 2); }).code, ExitCode::broken_invariant);
    EXPECT_EQ(error_of([&] { added(1, 2, 3); }).code, ExitCode::broken_invariant);
}

}  // namespace
}  // namespace maestro::train
