// Which ranks share which memory, according to their reports, and the message if there is too little.
#include "workload/memory_pools.hpp"

#include <gmock/gmock.h>

namespace maestro::workload {
namespace {

using testing::ElementsAre;

constexpr double kMiB = 1 << 20;

template <std::size_t N>
void say(std::array<char, N>& place, const std::string& words) {
    words.copy(place.data(), place.size() - 1);
}

/// A rank's claim on a GPU that has this number in its process.
MemoryClaim of_gpu(const std::string& host, const std::string& bus, int number, double needed, double free) {
    MemoryClaim claim;
    say(claim.memory, "boot id of " + host + " " + bus);
    say(claim.host, host);
    say(claim.bus, bus);
    claim.gpu = number;
    claim.needed = needed * kMiB;
    claim.free = free * kMiB;
    return claim;
}

MemoryClaim of_node(const std::string& host, double needed, double free) {
    MemoryClaim claim;
    say(claim.memory, host);
    say(claim.host, host);
    claim.needed = needed * kMiB;
    claim.free = free * kMiB;
    return claim;
}

std::vector<std::string> names(const std::vector<MemoryPool>& pools) {
    std::vector<std::string> all;
    for (const MemoryPool& store : pools) all.push_back(store.name);
    return all;
}

TEST(MemoryPools, AddUpWhatRanksOfOneMemoryNeedAndTakeTheLeastThatIsFree) {
    const std::vector<MemoryClaim> claims{of_node("a", 30, 90), of_gpu("a", "10", 0, 40, 95),
                                          of_gpu("a", "11", 1, 25, 100), of_gpu("a", "10", 0, 50, 80),
                                          of_gpu("b", "10", 0, 60, 100)};
    const auto pools = memory_pools_of(claims);
    EXPECT_THAT(names(pools), ElementsAre("a", "GPU 0 of a", "GPU 1 of a", "GPU 0 of b"));
    const MemoryPool& shared = memory_pool_of(pools, claims[3]);
    EXPECT_EQ(&shared, &memory_pool_of(pools, claims[1]));
    EXPECT_EQ(shared.ranks, 2);
    EXPECT_EQ(shared.needed, 90 * kMiB);
    EXPECT_EQ(shared.free, 80 * kMiB);
    EXPECT_EQ(shortage(pools), "the ranks on GPU 0 of a need 90 MiB of memory, 80 MiB are free there");
}

TEST(MemoryPools, AreEnoughForWhatJustFits) {
    EXPECT_EQ(
        shortage(memory_pools_of(std::vector{of_gpu("a", "10", 0, 40, 80), of_gpu("a", "10", 0, 40, 80)})),
        "");
    EXPECT_EQ(shortage({}), "");
}

TEST(MemoryPools, OfGpusThatAllHaveOneNumberAreToldApartByTheBus) {
    const auto pools = memory_pools_of(std::vector{of_gpu("a", "10", 0, 60, 80), of_gpu("a", "11", 0, 60, 80),
                                                   of_gpu("a", "12", 0, 90, 80)});
    EXPECT_THAT(names(pools),
                ElementsAre("GPU 0 (PCI 10) of a", "GPU 0 (PCI 11) of a", "GPU 0 (PCI 12) of a"));
    EXPECT_EQ(shortage(pools),
              "the ranks on GPU 0 (PCI 12) of a need 90 MiB of memory, 80 MiB are free there");
}

TEST(MemoryPools, ThatRanksNumberUnlikeAreOneStill) {
    const auto pools =
        memory_pools_of(std::vector{of_gpu("a", "10", 0, 50, 80), of_gpu("a", "10", 3, 50, 80)});
    EXPECT_THAT(names(pools), ElementsAre("GPU 0 (PCI 10) of a"));
    EXPECT_EQ(shortage(pools),
              "the ranks on GPU 0 (PCI 10) of a need 100 MiB of memory, 80 MiB are free there");
}

TEST(MemoryPools, NameTheMemoryThatLacksMost) {
    const auto pools = memory_pools_of(std::vector{of_node("a", 90, 80), of_gpu("b", "10", 0, 200, 100)});
    EXPECT_EQ(shortage(pools), "the ranks on GPU 0 of b need 200 MiB of memory, 100 MiB are free there");
}

}  // namespace
}  // namespace maestro::workload
