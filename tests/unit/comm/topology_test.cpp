// What the ranks of a launch are to the nodes.
#include "comm/topology.hpp"

#include <gtest/gtest.h>

namespace maestro::comm {
namespace {

int common(const std::vector<int>& first_ranks) {
    return common_ranks_per_node(first_ranks);
}

TEST(Topology, FindsHowManyRanksEveryNodeHas) {
    EXPECT_EQ(common({0}), 1);
    EXPECT_EQ(common({0, 0, 0, 0}), 4) << "one node";
    EXPECT_EQ(common({0, 0, 2, 2, 4, 4}), 2);
    EXPECT_EQ(common({0, 0, 0, 3}), 3) << "only the last node has fewer";
    EXPECT_EQ(common({0, 1, 2}), 1);
    EXPECT_EQ(common({0, 1, 1, 1}), 0) << "the last node has more";
    EXPECT_EQ(common({0, 0, 0, 3, 3, 5, 5, 5}), 0) << "a node between has fewer";
    EXPECT_EQ(common({0, 1, 0, 1}), 0) << "ranks by turns";
    EXPECT_EQ(common({0, 0, 2, 2, 0, 0}), 0) << "a node comes twice";
}

}  // namespace
}  // namespace maestro::comm
