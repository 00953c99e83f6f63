#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "channel/open.hpp"
#include "support/edges.hpp"
#include "support/errors.hpp"

namespace maestro::channel {
namespace {

using testing::HasSubstr;

ChannelSpec edge(const std::vector<int>& producers, const std::vector<int>& consumers) {
    ChannelSpec spec;
    spec.name = "vision-language";
    spec.pointer = producers == consumers;
    spec.producers = testing_support::one_each(producers);
    spec.consumers = testing_support::one_each(consumers);
    return spec;
}

const std::vector<std::string> kHosts = {"a", "a", "b", "b"};  // of ranks 0 to 3
const std::vector<std::string> kNoGpus(4);

TEST(Choice, OneNodeSharesMemoryAndSeveralExchangeMessages) {
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, kNoGpus, Wanted::automatic).means, Means::window);
    EXPECT_EQ(choose(edge({2}, {3}), kHosts, kNoGpus, Wanted::automatic).means, Means::window);
    const Choice crossing = choose(edge({0}, {1, 2, 3}), kHosts, kNoGpus, Wanted::automatic);
    EXPECT_EQ(crossing.means, Means::messages);
    EXPECT_EQ(crossing.reason, "its ranks are on a, b");
}

TEST(Choice, ColocatedSectionsPassAPointerWhateverIsWanted) {
    for (const Wanted wanted : {Wanted::automatic, Wanted::window, Wanted::messages})
        EXPECT_EQ(choose(edge({1, 2}, {1, 2}), kHosts, kNoGpus, wanted).means, Means::pointer);
}

TEST(Choice, ColocatedReplicasOfSeveralRanksSendToThemselves) {
    ChannelSpec spec = edge({}, {});
    spec.producers = spec.consumers = {{0, 1}};
    spec.pointer = false;
    EXPECT_EQ(choose(spec, kHosts, kNoGpus, Wanted::automatic).means, Means::window);
    spec.producers = {{0, 1}, {2, 3}};
    spec.consumers = spec.producers;
    EXPECT_EQ(choose(spec, kHosts, kNoGpus, Wanted::automatic).reason, "its ranks are on a, b");
}

TEST(Choice, MessagesCanBeWantedAndWindowsOnlyWithinANode) {
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, kNoGpus, Wanted::messages).means, Means::messages);
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, kNoGpus, Wanted::window).means, Means::window);
    const auto error =
        testing_support::error_of([] { choose(edge({1}, {2}), kHosts, kNoGpus, Wanted::window); });
    EXPECT_EQ(error.code, ExitCode::bad_deck);
    EXPECT_THAT(error.what,
                HasSubstr("edge vision-language leaves the node (its ranks are on a, b); set it to "
                          "\"auto\" or \"messages\""));
}

TEST(Choice, GpusCopyToWhatTheyReachAndSayWhyNot) {
    ChannelSpec spec = edge({0}, {1});
    const std::vector<bool> all(4, true), none(4, false), one = {true, false, false, false};
    EXPECT_EQ(way_of_gpus(spec, Means::window, none, ""), "");
    EXPECT_EQ(way_of_gpus(spec, Means::window, all, ""), "GPUs copy straight from and to it");
    EXPECT_EQ(way_of_gpus(spec, Means::window, one, ""),
              "the GPUs of 1 of its 2 ranks copy straight from and to it");
    EXPECT_EQ(way_of_gpus(spec, Means::window, all, "cudaHostRegister: no"),
              "GPUs copy through pinned memory, because cudaHostRegister: no");
    EXPECT_THAT(way_of_gpus(spec, Means::messages, all, ""), HasSubstr("through pinned memory"));
    EXPECT_EQ(way_of_gpus(edge({1}, {1}), Means::pointer, all, ""), "GPUs keep its rows");
    spec.latency_s = 1;
    EXPECT_THAT(way_of_gpus(spec, Means::window, all, ""), HasSubstr("through pinned memory"));
}

}  // namespace
}  // namespace maestro::channel
