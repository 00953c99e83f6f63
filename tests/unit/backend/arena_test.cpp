// Arenas and buffers: alignment, marks, peaks, and errors where memory does not suffice.
#include "backend/arena.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace maestro::backend {
namespace {

TEST(Arena, AllocatesAlignedTensorsThatDoNotOverlap) {
    const auto cpu = make_cpu(1);
    Arena arena(*cpu, 1024);
    const Tensor a = arena.allocate(DType::f32, {5}), b = arena.allocate(DType::bf16, {3, 3});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data) % 64, 0u);
    EXPECT_EQ(static_cast<std::byte*>(b.data) - static_cast<std::byte*>(a.data), 64);
    const std::size_t mark = arena.mark();
    {
        const ArenaScope scope(arena);
        EXPECT_EQ(arena.allocate(DType::f64, {8}).data, static_cast<std::byte*>(a.data) + 128);
    }
    EXPECT_EQ(arena.mark(), mark);
    EXPECT_EQ(arena.peak(), 192u);
    arena.reset();
    EXPECT_EQ(arena.allocate(DType::f32, {1}).data, a.data);
    EXPECT_EQ(arena.peak(), 192u) << "a reset does not forget the peak";
}

TEST(Arena, ReportsWhatItLacks) {
    const auto cpu = make_cpu(1);
    Arena arena(*cpu, 256);
    arena.allocate(DType::f32, {32});
    try {
        arena.allocate(DType::f32, {33});
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::broken_invariant);
        EXPECT_THAT(error.what(),
                    testing::HasSubstr("arena of 256 bytes, 128 used, 192 requested for f32[33]"));
    }
    EXPECT_NO_THROW(arena.allocate(DType::f32, {32})) << "a failed allocation uses no memory";
}

TEST(Arena, MeasuresOnMetaWithoutAllocating) {
    const auto meta = make_meta();
    Arena arena;
    const Tensor huge = arena.allocate(DType::f32, {1 << 20, 1 << 20});
    EXPECT_EQ(huge.size(), std::int64_t{1} << 40);
    EXPECT_EQ(arena.peak(), std::size_t{1} << 42);
    int runs = 0;
    meta->launch(
        {3, 5}, [&] { ++runs; }, [&](Stream) { ++runs; });
    EXPECT_EQ(runs, 0);
    EXPECT_EQ(meta->counts().flops, 3);
    EXPECT_EQ(meta->counts().bytes, 5);
}

TEST(Buffer, MovesItsMemory) {
    const auto cpu = make_cpu(1);
    Buffer one(*cpu, 100);
    void* const data = one.data();
    Buffer two = std::move(one);
    EXPECT_EQ(two.data(), data);
    EXPECT_EQ(two.bytes(), 100u);
    Buffer three(*cpu, 10);
    three = std::move(two);
    EXPECT_EQ(three.data(), data);
}

#if defined(__x86_64__)
TEST(Cpu, FlushesDenormalsOnEveryThread) {
    const auto cpu = make_cpu(2);
    int kept = 0;
#pragma omp parallel num_threads(2) reduction(+ : kept)
    {
        volatile float tiny = 1e-38f;
        tiny = tiny * 0.01f;
        kept += tiny != 0.0f;
    }
    EXPECT_EQ(kept, 0);
}
#endif

TEST(Cpu, ReportsFailedAllocations) {
    try {
        make_cpu(1)->allocate(std::size_t{1} << 60);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::device_memory);
    }
}

}  // namespace
}  // namespace maestro::backend
