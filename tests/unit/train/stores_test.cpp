// Who shares which memory, by what ranks say of it, and what is said where it is too little.
#include "train/run/stores.hpp"

#include <gmock/gmock.h>

namespace maestro::train {
namespace {

using testing::ElementsAre;

constexpr double kMiB = 1 << 20;

template <std::size_t N>
void say(std::array<char, N>& place, const std::string& words) {
    words.copy(place.data(), place.size() - 1);
}

/// A rank's share of a GPU, which the rank calls `number`.
Claim of_gpu(const std::string& host, const std::string& bus, int number, double needed, double free) {
    Claim claim;
    say(claim.memory, "boot id of " + host + " " + bus);
    say(claim.host, host);
    say(claim.bus, bus);
    claim.gpu = number;
    claim.needed = needed * kMiB;
    claim.free = free * kMiB;
    return claim;
}

Claim of_node(const std::string& host, double needed, double free) {
    Claim claim;
    say(claim.memory, host);
    say(claim.host, host);
    claim.needed = needed * kMiB;
    claim.free = free * kMiB;
    return claim;
}

std::vector<std::string> names(const std::vector<Store>& stores) {
    std::vector<std::string> all;
    for (const Store& store : stores) all.push_back(store.name);
    return all;
}

TEST(Stores, AddUpWhatRanksOfOneMemoryNeedAndTakeTheLeastThatIsFree) {
    const std::vector<Claim> claims{of_node("a", 30, 90), of_gpu("a", "10", 0, 40, 95),
                                    of_gpu("a", "11", 1, 25, 100), of_gpu("a", "10", 0, 50, 80),
                                    of_gpu("b", "10", 0, 60, 100)};
    const auto stores = stores_of(claims);
    EXPECT_THAT(names(stores), ElementsAre("a", "GPU 0 of a", "GPU 1 of a", "GPU 0 of b"));
    const Store& shared = store_of(stores, claims[3]);
    EXPECT_EQ(&shared, &store_of(stores, claims[1]));
    EXPECT_EQ(shared.ranks, 2);
    EXPECT_EQ(shared.needed, 90 * kMiB);
    EXPECT_EQ(shared.free, 80 * kMiB);
    EXPECT_EQ(shortage(stores), "the ranks on GPU 0 of a need 90 MiB of memory, 80 MiB are free there");
}

TEST(Stores, AreEnoughForWhatJustFits) {
    EXPECT_EQ(shortage(stores_of(std::vector{of_gpu("a", "10", 0, 40, 80), of_gpu("a", "10", 0, 40, 80)})),
              "");
    EXPECT_EQ(shortage({}), "");
}

TEST(Stores, OfGpusThatAllHaveOneNumberAreToldApartByTheBus) {
    const auto stores = stores_of(std::vector{of_gpu("a", "10", 0, 60, 80), of_gpu("a", "11", 0, 60, 80),
                                              of_gpu("a", "12", 0, 90, 80)});
    EXPECT_THAT(names(stores),
                ElementsAre("GPU 0 (PCI 10) of a", "GPU 0 (PCI 11) of a", "GPU 0 (PCI 12) of a"));
    EXPECT_EQ(shortage(stores),
              "the ranks on GPU 0 (PCI 12) of a need 90 MiB of memory, 80 MiB are free there");
}

TEST(Stores, ThatRanksNumberUnlikeAreOneStill) {
    const auto stores = stores_of(std::vector{of_gpu("a", "10", 0, 50, 80), of_gpu("a", "10", 3, 50, 80)});
    EXPECT_THAT(names(stores), ElementsAre("GPU 0 (PCI 10) of a"));
    EXPECT_EQ(shortage(stores),
              "the ranks on GPU 0 (PCI 10) of a need 100 MiB of memory, 80 MiB are free there");
}

TEST(Stores, NameTheMemoryThatLacksMost) {
    const auto stores = stores_of(std::vector{of_node("a", 90, 80), of_gpu("b", "10", 0, 200, 100)});
    EXPECT_EQ(shortage(stores), "the ranks on GPU 0 of b need 200 MiB of memory, 100 MiB are free there");
}

}  // namespace
}  // namespace maestro::train
