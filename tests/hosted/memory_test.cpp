// Device memory and copies: who may access memory when, and when a copy reads its source.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "kernels.cuh"
#include "ledger.hpp"
#include "test_device.hpp"

namespace hosted {
namespace {

namespace kernels = maestro::kernels;
using testing::Each;
using testing::ElementsAre;

TEST(Memory, IsAlignedEmptyAndKnown) {
    const Array<char> a(1), b(1000);
    for (const char* pointer : {a.get(), b.get()}) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % 256, 0u);
        EXPECT_TRUE(is_device(pointer));
    }
    EXPECT_THAT(b.values(), Each('\xff'));
    EXPECT_TRUE(is_device(b.get(), 1000));
    EXPECT_FALSE(is_device(b.get(), 1001));
    EXPECT_TRUE(is_device(b.get() + 999));
    EXPECT_FALSE(is_device(b.get() + 1000));
    const int local = 0;
    EXPECT_FALSE(is_device(&local));
    cudaPointerAttributes attributes;
    check(cudaPointerGetAttributes(&attributes, b.get() + 5));
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
}

TEST(Memory, RunsOut) {
    std::size_t free = 0, total = 0, less = 0;
    check(cudaMemGetInfo(&free, &total));
    EXPECT_LE(free, total);
    void* pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, free), cudaErrorMemoryAllocation) << "each allocation takes a gap too";
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    const Array<char> some(1 << 20);
    check(cudaMemGetInfo(&less, &total));
    EXPECT_LE(less, free - (1 << 20));
    check(cudaMalloc(&pointer, 0));
    EXPECT_EQ(pointer, nullptr);
}

TEST(Memory, IsOfThoseWhoKeepOneLedger) {
    char path[] = "/tmp/hosted_ledger_XXXXXX";
    close(mkstemp(path));
    setenv("MAESTRO_HOSTED_LEDGER", path, 1);
    Ledger one;
    {
        Ledger other;
        one.add(3, 100);
        other.add(3, 20);
        other.add(2, 5);
        EXPECT_EQ(one.used(3), 120U);
        other.subtract(3, 10);
        EXPECT_EQ(one.used(3), 110U);
    }
    EXPECT_EQ(one.used(3), 100U);
    EXPECT_EQ(one.used(2), 0U);
    unsetenv("MAESTRO_HOSTED_LEDGER");
    unlink(path);
    EXPECT_EQ(Ledger().used(3), 0U);
}

TEST(Memory, IsFreedOnce) {
    void* pointer = nullptr;
    check(cudaMalloc(&pointer, 100));
    EXPECT_EQ(cudaFree(static_cast<char*>(pointer) + 1), cudaErrorInvalidValue);
    check(cudaFree(pointer));
    EXPECT_EQ(cudaFree(pointer), cudaErrorInvalidValue);
    check(cudaFree(nullptr));
    int local = 0;
    EXPECT_EQ(cudaFree(&local), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFreeHost(&local), cudaErrorInvalidValue);
    EXPECT_EQ(cudaHostUnregister(&local), cudaErrorHostMemoryNotRegistered);
    check(cudaHostRegister(&local, sizeof local, 0));
    EXPECT_TRUE(is_pinned(&local, sizeof local));
    EXPECT_EQ(cudaHostRegister(&local, sizeof local, 0), cudaErrorHostMemoryAlreadyRegistered);
    check(cudaHostUnregister(&local));
    cudaGetLastError();
}

TEST(MemoryDeathTest, IsClosedToTheHost) {
    const Array<int> x(100);
    EXPECT_DEATH(x.get()[3] = 1, "the host accessed device memory at .*allocation of 400 bytes");
    EXPECT_DEATH(EXPECT_EQ(std::memchr(x.get(), 3, 400), nullptr), "the host accessed device memory");
    int* freed = nullptr;
    {
        const Array<int> gone(1);
        freed = gone.get();
    }
    EXPECT_DEATH(*freed = 1, "the host accessed device memory at .*no allocation|use-after-poison");
    const auto in_a_host_function = [&] {
        const Stream stream;
        check(cudaLaunchHostFunc(
            stream, [](void* data) { *static_cast<int*>(data) = 1; }, x.get()));
        stream.wait();
    };
    EXPECT_DEATH(in_a_host_function(), "the host accessed device memory");
}

TEST(MemoryDeathTest, EndsAKernelThatLeavesItsAllocation) {
    const auto overrun = [] {
        const Array<float> x(std::vector<float>(256, 1.0f));
        const Stream stream;
        {
            const Array<float> y(255);
            check(kernels::scale(stream, y.get(), x.get(), 2, 256));
        }
        stream.wait();
    };
#ifdef __SANITIZE_ADDRESS__
    EXPECT_DEATH(overrun(), "AddressSanitizer: use-after-poison");
#else
    EXPECT_DEATH(overrun(), "something wrote beyond the end of a device allocation of 1020 bytes");
#endif
}

/// Copies from `source`, which is changed at once. Whether the copy saw the change.
bool sees_reuse(int* source) {
    const Array<int> x(1);
    const Stream stream;
    *source = 1;
    check(cudaMemcpyAsync(x.get(), source, sizeof(int), cudaMemcpyHostToDevice, stream));
    *source = 2;
    stream.wait();
    return x.values()[0] == 2;
}

TEST(Copies, ReadPinnedSourcesLateAndOthersAtTheCall) {
    const PinnedArray<int> pinned({0});
    EXPECT_TRUE(some_seed([&] { return sees_reuse(pinned.get()); }));
    int pageable = 0;
    EXPECT_FALSE(some_seed([&] { return sees_reuse(&pageable); }));
    check(cudaHostRegister(&pageable, sizeof pageable, 0));
    EXPECT_TRUE(some_seed([&] { return sees_reuse(&pageable); }));
    check(cudaHostUnregister(&pageable));
}

TEST(Copies, WritePinnedTargetsLateAndOthersAtTheCall) {
    const Array<int> x(std::vector<int>{7});
    const Stream stream;
    EXPECT_TRUE(some_seed([&] {
        const PinnedArray<int> y({0});
        check(cudaMemcpyAsync(y.get(), x.get(), sizeof(int), cudaMemcpyDeviceToHost, stream));
        const bool late = *y.get() == 0;
        stream.wait();
        EXPECT_EQ(*y.get(), 7);
        return late;
    }));
    int y = 0;
    check(cudaMemcpyAsync(&y, x.get(), sizeof y, cudaMemcpyDeviceToHost, stream));
    EXPECT_EQ(y, 7);
}

TEST(Copies, MoveRows) {
    const Array<int> x(std::vector<int>{1, 2, 3, 4, 5, 6}), y(std::vector<int>(8, 0));
    const Stream stream;
    check(cudaMemcpy2DAsync(y.get() + 1, 16, x.get() + 1, 12, 8, 2, cudaMemcpyDeviceToDevice, stream));
    stream.wait();
    EXPECT_THAT(y.values(), ElementsAre(0, 2, 3, 0, 0, 5, 6, 0));
    EXPECT_EQ(cudaMemcpy2DAsync(y.get(), 16, x.get(), 12, 16, 1, cudaMemcpyDeviceToDevice, stream),
              cudaErrorInvalidPitchValue);
    EXPECT_EQ(cudaMemcpy2DAsync(y.get() + 1, 16, x.get() + 1, 12, 12, 2, cudaMemcpyDeviceToDevice, stream),
              cudaErrorInvalidValue);
    check(cudaMemsetAsync(y.get(), 1, 8, stream));
    int z[8] = {};
    check(cudaMemcpyAsync(z, y.get(), sizeof z, cudaMemcpyDefault, stream));
    EXPECT_THAT(z, ElementsAre(0x01010101, 0x01010101, 3, 0, 0, 5, 6, 0));
    cudaGetLastError();
}

TEST(Copies, AreRefusedWhereTheyLie) {
    const Array<int> x(4);
    const Stream stream;
    int host[4] = {};
    EXPECT_EQ(cudaMemcpyAsync(x.get(), host, 16, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(x.get(), host, 16, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(x.get() + 1, host, 16, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(nullptr, host, 16, cudaMemcpyHostToHost, stream), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(x.get(), host, 16, cudaMemcpyHostToDevice, nullptr),
              cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaMemsetAsync(host, 0, 16, stream), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemsetAsync(x.get(), 0, 17, stream), cudaErrorInvalidValue);
    cudaGetLastError();
}

TEST(Copies, WithoutAStreamWaitOnlyForThoseThatBlock) {
    const auto read = [](unsigned flags) {
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, flags));
        const Array<int> x(std::vector<int>{0});
        check(cudaMemsetAsync(x.get(), 1, sizeof(int), stream));
        int y = 0;
        check(cudaMemcpy(&y, x.get(), sizeof y, cudaMemcpyDeviceToHost));
        check(cudaStreamDestroy(stream));
        return y;
    };
    EXPECT_FALSE(some_seed([&] { return read(cudaStreamDefault) == 0; }));
    EXPECT_TRUE(some_seed([&] { return read(cudaStreamNonBlocking) == 0; }));
}

TEST(CopiesDeathTest, EndIfTheirMemoryIsGone) {
    const auto early = [] {
        seed(2);
        const Array<int> x(1);
        const Stream stream;
        {
            const PinnedArray<int> y({1});
            check(cudaMemcpyAsync(x.get(), y.get(), sizeof(int), cudaMemcpyHostToDevice, stream));
        }
        stream.wait();
    };
    EXPECT_DEATH(early(), "were freed before the copy that was queued for them ran");
}

TEST(Devices, AreDescribed) {
    int count = 0, shared = 0, device = 7;
    check(cudaGetDeviceCount(&count));
    ASSERT_GE(count, 1);
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    EXPECT_EQ(properties.major, 9);
    EXPECT_EQ(properties.multiProcessorCount, 132);
    check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    EXPECT_EQ(shared, 232'448);
    check(cudaSetDevice(0));
    check(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
    EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
    EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice");
    char id[13];
    check(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    EXPECT_STREQ(id, "0000:10:00.0");
    cudaGetLastError();
}

}  // namespace
}  // namespace hosted
