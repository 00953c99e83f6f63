#include "schedule/problem/micro_batches.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.hpp"

namespace maestro::schedule {
namespace {

struct Samples {
    std::vector<double> cost;
    std::vector<std::uint8_t> pictures;
    std::vector<int> group_of;
};

/// Log-normal costs of sigma 0.4 on two groups, a third with pictures.
Samples unlike(int count) {
    const Random random(static_cast<std::uint64_t>(count), "unlike");
    Samples samples;
    for (int i = 0; i < count; ++i) {
        const auto at = static_cast<std::uint64_t>(i);
        samples.cost.push_back(std::exp(0.4 * random.normal(at)));
        samples.pictures.push_back(i % 3 == 0 ? 1 : 0);
        samples.group_of.push_back(i % 2);
    }
    return samples;
}

MicroBatches cut(const Samples& s, int size, Kinds kinds) {
    return cut_evenly(s.cost, s.pictures, s.group_of, 2, size, kinds);
}

TEST(MicroBatches, HaveEverySampleOnceInAsFewAsPossible) {
    for (const int count : {1, 2, 7, 48, 100})
        for (const int size : {1, 2, 4, 5})
            for (const Kinds kinds : {Kinds::apart, Kinds::together}) {
                const Samples samples = unlike(count);
                const MicroBatches batches = cut(samples, size, kinds);
                std::vector<int> seen;
                for (std::size_t b = 0; b < batches.size(); ++b) {
                    const auto list = batches.samples(b);
                    ASSERT_THAT(list.size(), testing::AllOf(testing::Ge(1), testing::Le(size)));
                    for (const int i : list) {
                        seen.push_back(i);
                        ASSERT_EQ(batches.item_of(i), static_cast<int>(b));
                        ASSERT_EQ(samples.group_of[i], samples.group_of[list.front()]);
                        if (kinds == Kinds::apart) {
                            ASSERT_EQ(samples.pictures[i], samples.pictures[list.front()]);
                        }
                    }
                }
                std::sort(seen.begin(), seen.end());
                std::vector<int> all(count);
                std::iota(all.begin(), all.end(), 0);
                ASSERT_EQ(seen, all);
                std::size_t fewest = 0;
                for (const int group : {0, 1}) {
                    int of_kind[2] = {0, 0};
                    for (int i = group; i < count; i += 2) ++of_kind[samples.pictures[i]];
                    if (kinds == Kinds::together) of_kind[0] += std::exchange(of_kind[1], 0);
                    for (const int n : of_kind) fewest += (n + size - 1) / size;
                }
                ASSERT_EQ(batches.size(), fewest);
            }
}

TEST(MicroBatches, AreOfEvenLength) {
    for (const Kinds kinds : {Kinds::apart, Kinds::together}) {
        const Samples samples = unlike(120);
        const MicroBatches batches = cut(samples, 4, kinds);
        std::map<std::pair<int, bool>, std::vector<double>> lengths;  // of a group and kind
        for (std::size_t b = 0; b < batches.size(); ++b) {
            const auto list = batches.samples(b);
            double sum = 0;
            for (const int i : list) sum += samples.cost[i];
            const bool pictures = kinds == Kinds::apart && samples.pictures[list.front()] != 0;
            lengths[{samples.group_of[list.front()], pictures}].push_back(sum);
        }
        ASSERT_EQ(lengths.size(), kinds == Kinds::apart ? 4U : 2U);
        for (const auto& [which, list] : lengths) {
            const auto [shortest, longest] = std::minmax_element(list.begin(), list.end());
            EXPECT_LE(*longest, 1.1 * *shortest);
        }
    }
}

}  // namespace
}  // namespace maestro::schedule
