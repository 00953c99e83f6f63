#include "comm/roll_call.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace maestro::comm {
namespace {

TEST(RollCall, ListsRanksWithTheirHostsUpToALimit) {
    const std::vector<std::string> hosts{"a", "a", "b", "b", "c", "c", "d", "d", "e", "e"};
    EXPECT_EQ(list_ranks({}, hosts), "");
    EXPECT_EQ(list_ranks(std::vector{2}, hosts), "rank 2 (b)");
    EXPECT_EQ(list_ranks(std::vector{1, 9}, hosts), "ranks 1 (a), 9 (e)");
    std::vector<int> all(hosts.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(list_ranks(all, hosts),
              "ranks 0 (a), 1 (a), 2 (b), 3 (b), 4 (c), 5 (c), 6 (d), 7 (d) and 2 others");
    all.pop_back();
    EXPECT_EQ(list_ranks(all, hosts),
              "ranks 0 (a), 1 (a), 2 (b), 3 (b), 4 (c), 5 (c), 6 (d), 7 (d) and 1 other");
}

}  // namespace
}  // namespace maestro::comm
