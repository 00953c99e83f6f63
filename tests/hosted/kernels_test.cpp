// Simulated kernels: correct ones have the same result in every order of threads, and faults are detected.
#include "kernels.cuh"

#include <gmock/gmock.h>

#include <numeric>

#include "test_device.hpp"

namespace hosted {
namespace {

using maestro::kernels::Fault;
namespace kernels = maestro::kernels;

std::vector<float> ramp(std::size_t n) {
    std::vector<float> x(n);
    std::iota(x.begin(), x.end(), 1.0f);
    return x;
}

double sum(unsigned threads, Fault fault) {
    const Array<float> x(ramp(1000));
    const Array<double> y(1);
    const Stream stream;
    check(kernels::sum(stream, y.get(), x.get(), 1000, threads, fault));
    stream.wait();
    return y.values()[0];
}

TEST(Kernels, RunEveryThreadOnce) {
    constexpr std::int64_t kSize = 5000;
    const Array<float> x(ramp(kSize)), y(kSize + 100);
    const Stream stream;
    check(kernels::scale(stream, y.get(), x.get(), 2, kSize));
    stream.wait();
    const std::vector<float> values = y.values();
    for (std::int64_t i = 0; i < kSize; ++i)
        ASSERT_EQ(values[i], 2.0f * static_cast<float>(i + 1) + static_cast<float>(i / 256));
    for (std::int64_t i = kSize; i < kSize + 100; ++i) ASSERT_TRUE(std::isnan(values[i]));

    const Array<int> counts(std::vector<int>{0, -1});
    check(kernels::count(stream, counts.get(), {7, 3, 2}, {5, 4, 3}));
    stream.wait();
    EXPECT_THAT(counts.values(), testing::ElementsAre(7 * 3 * 2 * 5 * 4 * 3, 34));
}

TEST(Kernels, WaitAtBarriers) {
    EXPECT_FALSE(some_seed([] { return sum(256, Fault::none) != 500'500; }));
    EXPECT_EQ(sum(1024, Fault::none), 500'500);
    EXPECT_EQ(sum(1, Fault::none), 500'500);
}

TEST(Kernels, ShowAMissingBarrier) {
    EXPECT_TRUE(some_seed([] { return sum(256, Fault::no_barrier) != 500'500; }));
}

TEST(Kernels, ShowAMissingBarrierOfAWarp) {
    const Stream stream;
    const auto wrong = [&](Fault fault) {
        const Array<int> y(64);
        check(kernels::pass_around(stream, y.get(), 64, 4, fault));
        stream.wait();
        const std::vector<int> values = y.values();
        for (int i = 0; i < 64; ++i)
            if (values[i] != i + 4) return true;
        return false;
    };
    EXPECT_FALSE(some_seed([&] { return wrong(Fault::none); }));
    EXPECT_TRUE(some_seed([&] { return wrong(Fault::no_warp_barrier); }));
}

TEST(Kernels, Shuffle) {
    const auto right = [] {
        const Array<float> x(ramp(1000));
        const Array<double> y(1);
        const Stream stream;
        check(kernels::sum_by_shuffles(stream, y.get(), x.get(), 1000, 256));
        stream.wait();
        return y.values()[0] == 500'500;
    };
    EXPECT_FALSE(some_seed([&] { return !right(); }));
}

TEST(Kernels, ExchangeWithinAWarp) {
    const Array<std::int64_t> y(8 * 32);
    const Stream stream;
    check(kernels::exchange(stream, y.get(), 32));
    stream.wait();
    const std::vector<std::int64_t> values = y.values();
    for (std::int64_t lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(values[lane], 50);
        EXPECT_EQ(values[32 + lane], (lane / 8 * 8 + 3) * 10);
        EXPECT_EQ(values[64 + lane], lane ^ 3);
        EXPECT_EQ(values[96 + lane], lane < 28 ? lane + 4 : lane);
        EXPECT_EQ(values[128 + lane], 0xaaaaaaaa);
        EXPECT_EQ(values[160 + lane], 1);
        EXPECT_EQ(values[192 + lane], lane < 16 ? 1 : 40);
        EXPECT_EQ(values[224 + lane], lane % 16 < 13 ? lane + 3 : lane);
    }
}

TEST(Kernels, FindSharedMemoryEmpty) {
    constexpr unsigned kBlocks = 20;
    const Array<int> y(kBlocks);
    const Stream stream;
    check(kernels::look_at_shared(stream, y.get(), kBlocks, 4096));
    stream.wait();
    EXPECT_THAT(y.values(), testing::Each(1));
}

TEST(KernelsDeathTest, EndAtABarrierThatNotAllReach) {
    EXPECT_DEATH(sum(64, Fault::some_threads), "threads wait for each other without end");
    EXPECT_DEATH(sum(64, Fault::other_barrier),
                 "launch 1 .*kernels.cu.*thread .*is at another __syncthreads than others of its block");
}

TEST(KernelsDeathTest, EndAtAShuffleThatALaneCannotJoin) {
    const auto pass = [] {
        const Array<int> y(32);
        const Stream stream;
        check(kernels::pass_around(stream, y.get(), 32, 1, Fault::exited_lane));
        stream.wait();
    };
    EXPECT_DEATH(pass(),
                 "lane 3 of mask 0xffffffff, which has exited|exits while lanes of its warp wait for it");
    const auto half = [] {
        const Array<std::int64_t> y(8 * 32);
        const Stream stream;
        check(kernels::exchange(stream, y.get(), 16));
        stream.wait();
    };
    EXPECT_DEATH(half(), "lane 16 of mask 0xffffffff, which the block does not have");
}

TEST(KernelsDeathTest, EndWhereTheyLeaveTheirSharedMemory) {
#ifdef __SANITIZE_ADDRESS__
    EXPECT_DEATH(sum(64, Fault::overrun), "AddressSanitizer: use-after-poison");
#else
    EXPECT_DEATH(sum(64, Fault::overrun), "asked for 512 bytes of shared memory and wrote byte 51[0-9]");
#endif
}

TEST(Launch, IsRefusedOutsideTheLimitsOfADevice) {
    const Stream s;
    EXPECT_EQ(kernels::nothing(s, 1, 1025, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(kernels::nothing(s, 1, {32, 32, 2}, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(kernels::nothing(s, 1, {1, 1, 65}, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(kernels::nothing(s, 0, 32, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(kernels::nothing(s, {1, 65'536, 1}, 1, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(kernels::nothing(s, {1, 1, 65'536}, 1, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(kernels::nothing(s, {100'000, 1, 1}, 1, 0), cudaSuccess);
    EXPECT_EQ(kernels::nothing(s, 1, {1, 1, 64}, 0), cudaSuccess);
    EXPECT_EQ(kernels::nothing(nullptr, 1, 1, 0), cudaErrorInvalidResourceHandle);

    EXPECT_EQ(kernels::nothing(s, 1, 1, 49'152), cudaSuccess);
    EXPECT_EQ(kernels::nothing(s, 1, 1, 49'153), cudaErrorInvalidValue);
    EXPECT_EQ(kernels::allow_shared(232'449), cudaErrorInvalidValue);
    EXPECT_EQ(kernels::allow_shared(232'448), cudaSuccess);
    EXPECT_EQ(kernels::nothing(s, 1, 1, 232'448), cudaSuccess);
    EXPECT_EQ(kernels::nothing(s, 1, 1, 232'449), cudaErrorInvalidValue);
    s.wait();
    cudaGetLastError();
}

}  // namespace
}  // namespace hosted
