// The routes of an edge: an example computed by hand, and random plans against the definition.
#include "train/step/routes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <vector>

#include "support/edges.hpp"
#include "unit/train/random_plan.hpp"

namespace maestro::channel {

void PrintTo(const Route& r, std::ostream* out) {
    *out << "sample " << r.sample << " of micro-batch " << r.producer_micro_batch << " of group "
         << r.producer_group << " to " << r.consumer_group;
    for (const RowSegment& p : r.segments)
        *out << ", rank " << p.producer << " row " << p.producer_row << " to rank " << p.consumer << " row "
             << p.consumer_row << " x " << p.rows;
}

}  // namespace maestro::channel

namespace maestro::train {
namespace {

using channel::Route;
using schedule::StepPlan;
using testing_support::route;

std::vector<Route> by_sample(std::vector<Route> routes) {
    std::sort(routes.begin(), routes.end(),
              [](const Route& a, const Route& b) { return a.sample < b.sample; });
    return routes;
}

using RowsOf = std::function<std::int64_t(std::int64_t)>;

/// Ends of one rank each: the rows of a micro-batch lie one after another at the producer, and separately for
/// each sample at the consumer.
std::vector<Route> routes_of(const StepPlan& plan, int from, int to, const RowsOf& rows_of) {
    const auto held = [&](bool together) {
        return [&rows_of, together](const schedule::MicroBatch& micro_batch) {
            workload::RowPlacements all;
            std::int64_t row = 0;
            for (const std::int64_t sample : micro_batch.samples) {
                const std::int64_t rows = rows_of(sample);
                auto& placed = all.emplace_back();
                if (rows > 0) placed.push_back({0, rows, 0, together ? row : 0});
                row += rows;
            }
            return all;
        };
    };
    return routes(plan, from, to, held(true), held(false));
}

TEST(Routes, GoFromTheUpstreamMicroBatchToWhoeverHasTheSample) {
    StepPlan plan;
    plan.batches = {
        {{{{10, 11, 12}}, {{13}}}, {{{21, 20}}, {{22, 23}}}},      // section 0: two groups
        {{}, {}, {}, {}},                                          // 1: another, with no work
        {{{{12, 10}}}, {{{13}}}, {{{23}}, {{20, 22}}}, {{{21}}}},  // 2: four; 11 is seen by none
    };
    const std::map<std::int64_t, std::int64_t> rows = {{10, 3}, {11, 5}, {12, 2}, {13, 0},
                                                       {20, 4}, {21, 1}, {22, 0}, {23, 7}};
    const std::vector<Route> expected = {
        route(10, 0, 0, 0, 0, 3), route(12, 0, 0, 0, 8, 2), route(13, 0, 1, 1, 0, 0),
        route(20, 1, 0, 2, 1, 4), route(21, 1, 0, 3, 0, 1), route(22, 1, 1, 2, 0, 0),
        route(23, 1, 1, 2, 0, 7),
    };
    const auto rows_of = [&](std::int64_t sample) { return rows.at(sample); };
    EXPECT_EQ(by_sample(routes_of(plan, 0, 2, rows_of)), expected);
    EXPECT_TRUE(routes_of(plan, 0, 1, rows_of).empty());
    EXPECT_TRUE(routes_of(plan, 1, 2, rows_of).empty());
}

/// Returns where a section has the sample: group, micro-batch, position in it.
std::optional<std::array<std::size_t, 3>> find(const Batches& section, std::int64_t sample) {
    for (std::size_t r = 0; r < section.size(); ++r)
        for (std::size_t k = 0; k < section[r].size(); ++k)
            for (std::size_t i = 0; i < section[r][k].samples.size(); ++i)
                if (section[r][k].samples[i] == sample) return {{r, k, i}};
    return std::nullopt;
}

TEST(Routes, OfRandomPlansAreWhatTheDefinitionSays) {
    int one_sided = 0, empty = 0, shifted = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const int producers = 1 + static_cast<int>(dice.up_to(2)),
                  fanout = 1 + static_cast<int>(dice.up_to(2));
        const StepPlan plan = random_plan(dice, producers, fanout, dice.up_to(40));
        const auto rows_of = [&](std::int64_t sample) { return (sample * 13 + 5) % 4; };
        std::vector<Route> expected;
        for (std::int64_t sample = 0; sample < 40; ++sample) {
            const auto from = find(plan.batches[0], sample), to = find(plan.batches[2], sample);
            if (from.has_value() != to.has_value()) ++one_sided;
            if (!from || !to) continue;
            const auto [r, k, place] = *from;
            std::int64_t first_row = 0;
            for (std::size_t i = 0; i < place; ++i) first_row += rows_of(plan.batches[0][r][k].samples[i]);
            expected.push_back(route(sample, static_cast<int>(r), static_cast<int>(k),
                                     static_cast<int>((*to)[0]), first_row, rows_of(sample)));
            empty += rows_of(sample) == 0;
            shifted += first_row > 0;
        }
        EXPECT_EQ(by_sample(routes_of(plan, 0, 2, rows_of)), expected);
    }
    EXPECT_GT(one_sided, 100) << "the plans are what they are meant to be";
    EXPECT_GT(empty, 100);
    EXPECT_GT(shifted, 100);
}

/// A rank lays out the routes of its groups, and no other micro-batches.
TEST(Routes, AreLaidOutForTheGroupsOfARankAlone) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const int fanout = 1 + static_cast<int>(dice.up_to(2));
        const StepPlan plan = random_plan(dice, 3, fanout, 40);
        std::set<std::int64_t> laid_out;
        const RowLayout layout = [&](const schedule::MicroBatch& micro_batch) {
            workload::RowPlacements rows;
            std::int64_t row = 0;
            for (const std::int64_t sample : micro_batch.samples) {
                laid_out.insert(sample);
                rows.push_back({{0, 1, 0, row++}});
            }
            return rows;
        };
        const std::vector<Route> all = routes(plan, 0, 2, layout, layout);
        const EndGroups ends[] = {{1, {}}, {{}, fanout}, {2, 0}, {{}, {}}};
        for (const EndGroups& local : ends) {
            laid_out.clear();
            const std::vector<Route> some = routes(plan, 0, 2, layout, layout, local);
            std::vector<Route> expected;
            std::copy_if(all.begin(), all.end(), std::back_inserter(expected), [&](const Route& route) {
                return local.producer == route.producer_group || local.consumer == route.consumer_group;
            });
            EXPECT_EQ(some, expected);
            if (!local.producer && !local.consumer) {
                EXPECT_TRUE(laid_out.empty());
            }
            if (local.producer == 1)  // neither the other producers nor their consumers
                for (const std::int64_t sample : laid_out) {
                    const auto from = find(plan.batches[0], sample), to = find(plan.batches[2], sample);
                    EXPECT_TRUE(!from || (*from)[0] == 1) << sample;
                    EXPECT_TRUE(!to || (*to)[0] / static_cast<std::size_t>(fanout) == 1) << sample;
                }
        }
    }
}

}  // namespace
}  // namespace maestro::train
