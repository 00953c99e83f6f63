#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "channel/open.hpp"
#include "support/edges.hpp"
#include "support/errors.hpp"
#include "transport/choice.hpp"

namespace maestro::channel {
namespace {

using testing::HasSubstr;
using transport::Method;

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
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, kNoGpus, TransportRequest::automatic).method,
              Method::shared_memory);
    EXPECT_EQ(choose(edge({2}, {3}), kHosts, kNoGpus, TransportRequest::automatic).method,
              Method::shared_memory);
    const transport::Choice crossing =
        choose(edge({0}, {1, 2, 3}), kHosts, kNoGpus, TransportRequest::automatic);
    EXPECT_EQ(crossing.method, Method::messages);
    EXPECT_EQ(crossing.reason, "its ranks are on a, b");
}

TEST(Choice, ColocatedSectionsPassAPointerWhateverIsRequested) {
    for (const TransportRequest request :
         {TransportRequest::automatic, TransportRequest::shared_memory, TransportRequest::messages})
        EXPECT_EQ(choose(edge({1, 2}, {1, 2}), kHosts, kNoGpus, request).method, Method::pointer);
}

TEST(Choice, ColocatedReplicasOfSeveralRanksSendToThemselves) {
    ChannelSpec spec = edge({}, {});
    spec.producers = spec.consumers = {{0, 1}};
    spec.pointer = false;
    EXPECT_EQ(choose(spec, kHosts, kNoGpus, TransportRequest::automatic).method, Method::shared_memory);
    spec.producers = {{0, 1}, {2, 3}};
    spec.consumers = spec.producers;
    EXPECT_EQ(choose(spec, kHosts, kNoGpus, TransportRequest::automatic).reason, "its ranks are on a, b");
}

/// Through the host: rows to consumers, or gradients to all producers that serve the rank.
TEST(Staging, HoldsWhatTheRankSendsInAllMicroBatchesInFlight) {
    ChannelSpec spec = edge({0, 1}, {2});
    spec.width = 8;
    spec.dtype = DType::f32;
    spec.window = 3;
    spec.max_sent = 5;
    spec.max_received = 5;
    spec.carries_gradient = true;
    EXPECT_EQ(host_staging(spec, 0), 3u * 5 * 8 * 4);
    EXPECT_EQ(host_staging(spec, 2), 3u * 2 * 5 * 8 * 4);
    spec.carries_gradient = false;
    EXPECT_EQ(host_staging(spec, 2), 0u);
}

TEST(Choice, MessagesCanBeRequestedAndWindowsOnlyWithinANode) {
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, kNoGpus, TransportRequest::messages).method, Method::messages);
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, kNoGpus, TransportRequest::shared_memory).method,
              Method::shared_memory);
    const auto error = testing_support::error_of(
        [] { choose(edge({1}, {2}), kHosts, kNoGpus, TransportRequest::shared_memory); });
    EXPECT_EQ(error.code, ExitCode::bad_deck);
    EXPECT_THAT(error.what,
                HasSubstr("edge vision-language leaves the node (its ranks are on a, b); set it to "
                          "\"auto\" or \"messages\""));
}

TEST(Choice, GpusSendThroughTheHostWhereMpiDoesNotReachThem) {
    const std::vector<std::string> separate = {"a 0", "a 1", "b 0", "b 1"},
                                   shared = {"a 0", "a 0", "b 0", ""};
    const transport::Choice found = choose(edge({0}, {1, 2}), kHosts, separate, TransportRequest::automatic);
    EXPECT_EQ(found.method, Method::messages);
    EXPECT_EQ(found.reason, "MPI reaches no GPUs and its ranks are on a, b");
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, shared, TransportRequest::automatic).reason,
              "MPI reaches no GPUs and all its ranks are on a");
    EXPECT_EQ(choose(edge({2}, {3}), kHosts, shared, TransportRequest::automatic).reason,
              "1 of 2 ranks have no GPU and all its ranks are on b");
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, separate, TransportRequest::shared_memory).method,
              Method::shared_memory);
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, separate, TransportRequest::messages).method, Method::messages);
    ChannelSpec slow = edge({0}, {1});
    slow.latency_s = 1;
    EXPECT_EQ(choose(slow, kHosts, separate, TransportRequest::automatic, true).method,
              Method::shared_memory);
}

TEST(Choice, AnMpiThatReachesGpusSends) {
    const std::vector<std::string> shared = {"a 0", "a 0", "b 0", ""};
    const transport::Choice found =
        choose(edge({0}, {1, 2}), kHosts, shared, TransportRequest::automatic, true);
    EXPECT_EQ(found.method, Method::gpu_mpi);
    EXPECT_EQ(found.reason, "MPI reaches the GPUs of all its ranks");
    EXPECT_EQ(choose(edge({2}, {3}), kHosts, shared, TransportRequest::automatic, true).method,
              Method::shared_memory);
    EXPECT_EQ(choose(edge({0}, {1}), kHosts, shared, TransportRequest::shared_memory, true).method,
              Method::shared_memory);
}

TEST(Choice, RowsGoBetweenRanksOfReplicasThatBelongTogether) {
    ChannelSpec spec;
    spec.producers = {{0, 1}, {2, 3}};
    spec.consumers = {{4}, {5}, {2}, {6}};
    EXPECT_TRUE(carries(spec, 1, 5) && carries(spec, 5, 1) && carries(spec, 3, 2) && carries(spec, 2, 6));
    EXPECT_FALSE(carries(spec, 1, 6) || carries(spec, 4, 5) || carries(spec, 2, 2) || carries(spec, 0, 1));
    spec.carries_gradient = false;
    EXPECT_TRUE(carries(spec, 1, 5) && carries(spec, 3, 2));
    EXPECT_FALSE(carries(spec, 5, 1) || carries(spec, 2, 3));
}

TEST(Choice, GpusCopyToWhatTheyReachAndSayWhyNot) {
    ChannelSpec spec = edge({0}, {1});
    const std::vector<bool> all(4, true), none(4, false), one = {true, false, false, false};
    EXPECT_EQ(describe_gpu_copies(spec, Method::shared_memory, none, ""), "");
    EXPECT_EQ(describe_gpu_copies(spec, Method::shared_memory, all, ""), "GPUs copy straight from and to it");
    EXPECT_EQ(describe_gpu_copies(spec, Method::shared_memory, one, ""),
              "the GPUs of 1 of its 2 ranks copy straight from and to it");
    EXPECT_EQ(describe_gpu_copies(spec, Method::shared_memory, all, "cudaHostRegister: no"),
              "GPUs copy through pinned memory, because cudaHostRegister: no");
    EXPECT_THAT(describe_gpu_copies(spec, Method::messages, all, ""), HasSubstr("through pinned memory"));
    EXPECT_EQ(describe_gpu_copies(edge({1}, {1}), Method::pointer, all, ""), "GPUs keep its rows");
    spec.latency_s = 1;
    EXPECT_THAT(describe_gpu_copies(spec, Method::shared_memory, all, ""),
                HasSubstr("through pinned memory"));
}

}  // namespace
}  // namespace maestro::channel
