// Streams run late and in any order that events allow.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "kernels.cuh"
#include "test_device.hpp"

namespace hosted {
namespace {

namespace kernels = maestro::kernels;

constexpr std::size_t kSize = 300;

/// One stream makes y of ones, another z of y. Whether z came out right.
bool chain(bool with_event) {
    const Array<float> x(std::vector<float>(kSize, 1.0f)), y(std::vector<float>(kSize, 5.0f)), z(kSize);
    const Stream first, second;
    const Event made;
    check(kernels::scale(first, y.get(), x.get(), 2, 256));
    check(cudaEventRecord(made, first));
    if (with_event) check(cudaStreamWaitEvent(second, made, 0));
    check(kernels::scale(second, z.get(), y.get(), 10, 256));
    second.wait();
    check(cudaDeviceSynchronize());
    return z.values()[0] == 20;
}

TEST(Streams, ShowARaceThatNoEventPrevents) {
    EXPECT_TRUE(some_seed([] { return !chain(false); }));
    EXPECT_FALSE(some_seed([] { return !chain(true); }));
}

TEST(Streams, RunTheOperationsOfOneInOrder) {
    const auto disorder = [] {
        const Stream one, other;
        std::vector<int> order;
        for (int i = 0; i < 20; ++i) {
            check(enqueue(
                one, [&order, i] { order.push_back(i); }, "a note"));
            check(enqueue(
                other, [&order, i] { order.push_back(100 + i); }, "a note"));
        }
        one.wait();
        other.wait();
        int next[2] = {0, 100};
        for (const int i : order)
            if (i != next[i >= 100]++) ADD_FAILURE() << i;
        return order.size() == 40u && !std::is_sorted(order.begin(), order.end());
    };
    EXPECT_TRUE(some_seed(disorder));
}

TEST(Streams, RepeatTheirOrderForASeed) {
    const auto order = [](std::uint64_t value) {
        seed(value);
        std::vector<int> ran;
        const Stream streams[3];
        for (int i = 0; i < 30; ++i)
            check(enqueue(
                streams[i % 3], [&ran, i] { ran.push_back(i); }, "a note"));
        check(cudaDeviceSynchronize());
        return ran;
    };
    EXPECT_EQ(order(4), order(4));
    EXPECT_NE(order(4), order(5));
}

TEST(Streams, ServeSeveralThreads) {
    const auto work = [] {
        for (int round = 0; round < 20; ++round) EXPECT_TRUE(chain(true));
    };
    std::thread one(work), other(work);
    work();
    one.join();
    other.join();
}

TEST(Streams, DoNotRunAtTheCall) {
    EXPECT_TRUE(some_seed([] {
        const Stream stream;
        bool ran = false;
        check(enqueue(
            stream, [&] { ran = true; }, "a note"));
        const bool late = !ran;
        stream.wait();
        EXPECT_TRUE(ran);
        return late;
    }));
}

TEST(Streams, AnswerQueriesInTheEnd) {
    const Stream stream;
    const Event event;
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "an event that was never recorded";
    bool ran = false;
    check(enqueue(
        stream, [&] { ran = true; }, "a note"));
    check(cudaEventRecord(event, stream));
    while (cudaEventQuery(event) == cudaErrorNotReady) continue;
    EXPECT_TRUE(ran);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) continue;
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "not ready is no error";
}

TEST(Streams, WaitForAnEventAsItWasAtTheCall) {
    const Stream first, second;
    const Event event;
    bool once = false;
    check(enqueue(
        first, [&] { once = true; }, "a note"));
    check(cudaEventRecord(event, first));
    bool right = false;
    check(cudaStreamWaitEvent(second, event, 0));
    check(enqueue(
        second, [&] { right = once; }, "a note"));
    check(cudaEventRecord(event, second));
    check(cudaEventSynchronize(event));
    EXPECT_TRUE(right);
}

TEST(Streams, MeasureTime) {
    const Stream stream;
    const Event start(cudaEventDefault), end(cudaEventDefault), untimed;
    float passed = 0;
    check(cudaEventRecord(start, stream));
    check(enqueue(
        stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }, "a pause"));
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&passed, start, end));
    EXPECT_GE(passed, 5.0f);
    check(cudaEventRecord(untimed, stream));
    check(cudaEventSynchronize(untimed));
    EXPECT_EQ(cudaEventElapsedTime(&passed, start, untimed), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
}

TEST(Streams, RunHostFunctionsBesideTheHost) {
    const Stream stream;
    struct Note {
        std::atomic<bool> ran = false;
        std::thread::id by;
    } note;
    const auto function = [](void* data) {
        auto& n = *static_cast<Note*>(data);
        n.by = std::this_thread::get_id();
        n.ran = true;
    };
    check(cudaLaunchHostFunc(stream, function, &note));
    stream.wait();
    EXPECT_TRUE(note.ran);
    EXPECT_NE(note.by, std::this_thread::get_id());
    note.ran = false;
    check(cudaLaunchHostFunc(stream, function, &note));
    while (!note.ran) std::this_thread::yield();  // without another call
}

TEST(Streams, TryAgainWhatOthersMustJoin) {
    const Stream stream, other;
    std::atomic<bool> joined = false;
    bool after = false;
    check(enqueue_until(
        stream, [&] { return joined.load(); }, "a meeting"));
    check(enqueue(
        stream, [&] { after = true; }, "a note"));
    other.wait();
    EXPECT_FALSE(after);
    std::thread peer([&] { joined = true; });
    stream.wait();
    EXPECT_TRUE(after);
    peer.join();
}

/// Of nine streams two share one of eight queues.
TEST(Streams, WaitBehindOthersInTheirQueue) {
    const Stream blocked, others[8];
    const Event made;
    bool may_end = false;
    check(enqueue_until(
        others[0], [&] { return may_end; }, "work that waits for another rank"));
    check(cudaEventRecord(made, others[0]));
    check(cudaStreamWaitEvent(blocked, made, 0));
    for (const Stream& stream : others)
        check(enqueue(
            stream, [] {}, "a note"));
    for (int i = 1; i < 7; ++i) others[i].wait();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaStreamQuery(others[7]), cudaErrorNotReady);
    may_end = true;
    others[7].wait();
    check(cudaDeviceSynchronize());
}

TEST(Streams, RefuseHandlesThatAreNone) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaStreamDestroy(stream));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInvalidResourceHandle) << "the legacy default stream";
    EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventQuery(nullptr), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(enqueue(
                  nullptr, [] {}, "a note"),
              cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 77), cudaErrorInvalidValue);
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue) << "the last one";
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(StreamsDeathTest, EndAHostFunctionThatCallsTheRuntime) {
    const auto wrong = [] {
        const Stream stream;
        check(cudaLaunchHostFunc(
            stream, [](void*) { cudaDeviceSynchronize(); }, nullptr));
        stream.wait();
    };
    EXPECT_DEATH(wrong(), "a host function called the CUDA runtime");
}

}  // namespace
}  // namespace hosted
