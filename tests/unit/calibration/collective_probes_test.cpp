#include "calibration/collective_probes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace maestro::calibration {
namespace {

using Groups = std::vector<int>;

TEST(ProbedGroups, AreThoseOfANode) {
    EXPECT_THAT(probed_groups(Groups{0}), testing::IsEmpty());
    EXPECT_THAT(probed_groups(Groups{0, 0}), testing::ElementsAre(ProbedGroups{2, 1, {0, 0}}));
    EXPECT_THAT(
        probed_groups(Groups{7, 7, 7, 7, 7}),
        testing::ElementsAre(ProbedGroups{2, 1, {0, 0, 1, 1, -1}}, ProbedGroups{4, 1, {0, 0, 0, 0, -1}},
                             ProbedGroups{5, 1, {0, 0, 0, 0, 0}}));
}

TEST(ProbedGroups, AreThoseAcrossNodes) {
    EXPECT_THAT(probed_groups(Groups{0, 1, 2}),
                testing::ElementsAre(ProbedGroups{2, 2, {0, 0, -1}}, ProbedGroups{3, 3, {0, 0, 0}}));
    // Ranks in any order; the second node has one more than the first.
    EXPECT_THAT(
        probed_groups(Groups{0, 1, 0, 1, 1}),
        testing::ElementsAre(ProbedGroups{2, 1, {0, 3, 0, 3, -1}}, ProbedGroups{3, 1, {-1, 3, -1, 3, 3}},
                             ProbedGroups{2, 2, {0, 0, 1, 1, -1}}, ProbedGroups{4, 2, {0, 0, 0, 0, -1}}));
}

/// No two forms are the same rows of a cluster file.
TEST(ProbedGroups, HaveUnlikeForms) {
    for (int ranks = 1; ranks < 40; ++ranks)
        for (int each = 1; each <= ranks; ++each) {
            Groups node_of;
            for (int r = 0; r < ranks; ++r) node_of.push_back(r / each);
            std::vector<std::pair<int, int>> forms;
            for (const ProbedGroups& form : probed_groups(node_of)) {
                forms.emplace_back(form.ranks, form.nodes);
                std::vector<int> sizes(node_of.size() * 2, 0);
                for (const int group : form.group_of)
                    if (group >= 0) ++sizes.at(static_cast<std::size_t>(group));
                for (const int size : sizes) EXPECT_TRUE(size == 0 || size == form.ranks);
                EXPECT_NE(std::count(sizes.begin(), sizes.end(), form.ranks), 0);
            }
            std::sort(forms.begin(), forms.end());
            EXPECT_EQ(std::unique(forms.begin(), forms.end()), forms.end());
        }
}

}  // namespace
}  // namespace maestro::calibration
