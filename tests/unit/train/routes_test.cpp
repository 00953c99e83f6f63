// Who sends which rows to whom: an example worked out by hand, and random plans against the definition.
#include "train/routes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <vector>

#include "base/random.hpp"

namespace maestro::channel {

bool operator==(const Route& a, const Route& b) {
    return a.sample == b.sample && a.producer_replica == b.producer_replica &&
           a.producer_micro_batch == b.producer_micro_batch && a.consumer_replica == b.consumer_replica &&
           a.first_row == b.first_row && a.rows == b.rows;
}

void PrintTo(const Route& r, std::ostream* out) {
    *out << "sample " << r.sample << " of micro-batch " << r.producer_micro_batch << " of replica "
         << r.producer_replica << " to " << r.consumer_replica << ", rows " << r.first_row << "+" << r.rows;
}

}  // namespace maestro::channel

namespace maestro::train {
namespace {

using channel::Route;
using schedule::MicroBatch;
using schedule::StepPlan;
using Batches = std::vector<std::vector<MicroBatch>>;  ///< [replica][micro-batch]

std::vector<Route> by_sample(std::vector<Route> routes) {
    std::sort(routes.begin(), routes.end(),
              [](const Route& a, const Route& b) { return a.sample < b.sample; });
    return routes;
}

TEST(Routes, GoFromTheUpstreamMicroBatchToWhoeverHasTheSample) {
    StepPlan plan;
    plan.batches = {
        {{{{10, 11, 12}}, {{13}}}, {{{21, 20}}, {{22, 23}}}},      // section 0: two replicas
        {{}, {}, {}, {}},                                          // 1: another, with no work
        {{{{12, 10}}}, {{{13}}}, {{{23}}, {{20, 22}}}, {{{21}}}},  // 2: four; 11 is seen by none
    };
    const std::map<std::int64_t, std::int64_t> rows = {{10, 3}, {11, 5}, {12, 2}, {13, 0},
                                                       {20, 4}, {21, 1}, {22, 0}, {23, 7}};
    const std::vector<Route> expected = {
        {10, 0, 0, 0, 0, 3}, {12, 0, 0, 0, 8, 2}, {13, 0, 1, 1, 0, 0}, {20, 1, 0, 2, 1, 4},
        {21, 1, 0, 3, 0, 1}, {22, 1, 1, 2, 0, 0}, {23, 1, 1, 2, 0, 7},
    };
    const auto rows_of = [&](std::int64_t sample) { return rows.at(sample); };
    EXPECT_EQ(by_sample(routes(plan, 0, 2, rows_of)), expected);
    EXPECT_TRUE(routes(plan, 0, 1, rows_of).empty());
    EXPECT_TRUE(routes(plan, 1, 2, rows_of).empty());
}

/// Random numbers 0..most.
class Dice {
public:
    explicit Dice(std::uint64_t seed) : random_(seed, "routes") {}
    std::int64_t up_to(std::int64_t most) {
        return static_cast<std::int64_t>(random_.bits(next_++) % static_cast<std::uint64_t>(most + 1));
    }

private:
    Random random_;
    std::uint64_t next_ = 0;
};

/// Puts `sample` into the replica's last micro-batch or into a new one.
void append(std::vector<MicroBatch>& replica, std::int64_t sample, Dice& dice) {
    if (replica.empty() || dice.up_to(2) == 0) replica.emplace_back();
    replica.back().samples.push_back(sample);
}

/// Section 0 feeds section 2, some of whose samples it does not see, and the other way round; 1 is in between
/// and no part of the edge.
StepPlan random_plan(Dice& dice, int producers, int fanout) {
    StepPlan plan;
    plan.batches = {Batches(static_cast<std::size_t>(producers)), Batches(1),
                    Batches(static_cast<std::size_t>(producers * fanout))};
    const auto samples = dice.up_to(40);
    std::array<std::vector<std::int64_t>, 2> seen;
    for (std::int64_t i = 0; i < samples; ++i) {
        if (dice.up_to(4) > 0) seen[0].push_back(100 + i);
        if (dice.up_to(4) > 0) seen[1].push_back(100 + i);
        if (dice.up_to(1) == 0) append(plan.batches[1][0], 100 + i, dice);
    }
    // A sample goes down to one of those that its producer serves; each side has an order of its own.
    std::vector<std::int64_t> consumer(static_cast<std::size_t>(samples));
    for (auto& c : consumer) c = dice.up_to(producers * fanout - 1);
    for (const int side : {0, 1}) {
        auto& ids = seen[static_cast<std::size_t>(side)];
        for (std::size_t i = ids.size(); i > 1; --i)
            std::swap(ids[i - 1],
                      ids[static_cast<std::size_t>(dice.up_to(static_cast<std::int64_t>(i) - 1))]);
        for (const std::int64_t id : ids) {
            const auto to = static_cast<std::size_t>(consumer[static_cast<std::size_t>(id - 100)]);
            append(side == 0 ? plan.batches[0][to / static_cast<std::size_t>(fanout)] : plan.batches[2][to],
                   id, dice);
        }
    }
    return plan;
}

/// Where a section has the sample: replica, micro-batch, place in it.
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
        const StepPlan plan = random_plan(dice, producers, fanout);
        const auto rows_of = [&](std::int64_t sample) { return (sample * 13 + 5) % 4; };
        std::vector<Route> expected;
        for (std::int64_t sample = 100; sample < 141; ++sample) {
            const auto from = find(plan.batches[0], sample), to = find(plan.batches[2], sample);
            if (from.has_value() != to.has_value()) ++one_sided;
            if (!from || !to) continue;
            const auto [r, k, place] = *from;
            std::int64_t first_row = 0;
            for (std::size_t i = 0; i < place; ++i) first_row += rows_of(plan.batches[0][r][k].samples[i]);
            expected.push_back({sample, static_cast<int>(r), static_cast<int>(k), static_cast<int>((*to)[0]),
                                first_row, rows_of(sample)});
            empty += rows_of(sample) == 0;
            shifted += first_row > 0;
        }
        EXPECT_EQ(by_sample(routes(plan, 0, 2, rows_of)), expected);
    }
    EXPECT_GT(one_sided, 100) << "the plans are what they are meant to be";
    EXPECT_GT(empty, 100);
    EXPECT_GT(shifted, 100);
}

}  // namespace
}  // namespace maestro::train
