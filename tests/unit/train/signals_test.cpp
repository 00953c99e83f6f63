// Signals during GEMMs. Without the blocking of StopSignals the heap is corrupted within the
// first milliseconds: oneDNN's kernels for these shapes run with the stack pointer in a buffer on the heap.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_gemm.hpp"
#include "comm/signals.hpp"

namespace maestro {
namespace {

TEST(Signals, LeaveProductsAndTheHeapAlone) {
    constexpr std::int64_t kRows = 40, kColumns = 33, kInner = 100;
    comm::StopSignals signals([](int) {});
    signals.hold();
    std::atomic<bool> done{false};
    std::thread storm([&] {
        while (!done) {
            kill(getpid(), SIGUSR1);
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    });
    const std::vector<float> a(kRows * kInner, 0.5f), b(kInner * kColumns, 2.0f);
    for (int i = 0; i < 100'000; ++i) {
        std::vector<float> y(kRows * kColumns, 0.0f);
        backend::cpu_gemm({.a = a.data(),
                           .b = b.data(),
                           .y = y.data(),
                           .m = kRows,
                           .n = kColumns,
                           .k = kInner,
                           .lda = kInner,
                           .ldb = kColumns,
                           .ldy = kColumns,
                           .transpose_a = false,
                           .transpose_b = false,
                           .accumulate = false,
                           .in = DType::f32,
                           .out = DType::f32});
        ASSERT_EQ(y.front(), 100);
        ASSERT_EQ(y.back(), 100);
    }
    done = true;
    storm.join();
    EXPECT_EQ(signals.received(), SIGUSR1) << "it is not lost";
}

}  // namespace
}  // namespace maestro
