// The structures that find the least loaded machine without looking at all of them, against a search through
// all.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.hpp"
#include "schedule/problem/load_heap.hpp"
#include "schedule/problem/load_tree.hpp"
#include "schedule/problem/min_tree.hpp"

namespace maestro::schedule {
namespace {

/// The first machine whose largest load with `work` is smallest. loads: [machine][dimension].
int best_of_all(const std::vector<std::vector<double>>& loads, const std::vector<double>& work,
                const std::vector<double>& scale) {
    int best = 0;
    double smallest = std::numeric_limits<double>::infinity();
    for (std::size_t m = 0; m < loads.size(); ++m) {
        double largest = 0;
        for (std::size_t d = 0; d < work.size(); ++d)
            largest = std::max(largest, loads[m][d] + work[d] * scale[d]);
        if (largest >= smallest) continue;
        smallest = largest;
        best = static_cast<int>(m);
    }
    return best;
}

/// Work of items in three dimensions, of which some are 0; `levels`: how many values there are, so that loads
/// are often equal; 0: any number.
std::vector<double> work_of(const Random& random, std::uint64_t item, std::uint64_t levels) {
    std::vector<double> work;
    for (std::uint64_t d = 0; d < 3; ++d) {
        const std::uint64_t at = 2 * (3 * item + d);
        const double drawn = levels > 0 ? static_cast<double>(random.bits(at) % levels) : random.uniform(at);
        work.push_back(random.uniform(at + 1) < 0.4 ? 0 : drawn);
    }
    return work;
}

TEST(LoadTree, FindsTheFirstMachineThatAnItemFitsBest) {
    const std::vector<double> scale{1.0, 0.25, 3.0};
    for (const int machines : {1, 2, 3, 13, 64, 100})
        for (const std::uint64_t levels : {0, 2, 5}) {
            const Random random(levels, "loads");
            LoadTree tree(machines, scale);
            std::vector<std::vector<double>> loads(machines, std::vector<double>(3, 0.0));
            for (std::uint64_t item = 0; item < 1500; ++item) {
                const std::vector<double> work = work_of(random, item, levels);
                const int best = tree.best(work);
                ASSERT_EQ(best, best_of_all(loads, work, scale)) << machines << " machines, item " << item;
                tree.add(best, work);
                for (std::size_t d = 0; d < 3; ++d) loads[best][d] += work[d] * scale[d];
                for (std::size_t d = 0; d < 3; ++d) ASSERT_DOUBLE_EQ(tree.load(best)[d], loads[best][d]);
            }
        }
}

TEST(LoadHeap, AddsToTheFirstOfTheLeastLoads) {
    std::vector<double> loads{2, 0, 1, 0, 2};
    LoadHeap heap(loads);
    const Random random(1, "heap");
    for (std::uint64_t item = 0; item < 200; ++item) {
        const double load = static_cast<double>(random.bits(item) % 3);
        const auto least = std::min_element(loads.begin(), loads.end());
        ASSERT_EQ(heap.add_to_least(load), least - loads.begin()) << item;
        *least += load;
    }
    EXPECT_DOUBLE_EQ(heap.largest(), *std::max_element(loads.begin(), loads.end()));
}

TEST(MinTree, KnowsTheFirstOfTheSmallestValues) {
    const Random random(2, "values");
    for (const std::size_t count : {1, 2, 5, 16, 33}) {
        std::vector<double> values(count, MinTree::kNone);
        MinTree tree;
        tree.reset(count);
        EXPECT_EQ(tree.smallest(), MinTree::kNone);
        for (std::uint64_t k = 0; k < 500; ++k) {
            const std::size_t index = random.bits(2 * k) % count, drawn = random.bits(2 * k + 1) % 5;
            values[index] = drawn == 0 ? MinTree::kNone : static_cast<double>(drawn);
            tree.set(index, values[index]);
            const auto smallest = std::min_element(values.begin(), values.end());
            ASSERT_EQ(tree.smallest(), *smallest);
            ASSERT_EQ(tree.smallest_index(), static_cast<std::size_t>(smallest - values.begin()));
        }
    }
}

}  // namespace
}  // namespace maestro::schedule
