// How far the host runs ahead of the device.
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "backend/cuda/run_ahead.hpp"
#include "hosted/hosted.hpp"
#include "ops/attention/attention.hpp"
#include "ops/elementwise.hpp"
#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

constexpr auto kMost = static_cast<int>(backend::RunAhead::kMost);

class RunAhead : public testing_support::Tensors {
protected:
    /// Stops the stream until free_ is set.
    void block() {
        ASSERT_EQ(hosted::enqueue_until(
                      static_cast<cudaStream_t>(b_.stream()), [this] { return free_; }, "a blocked stream"),
                  cudaSuccess);
    }
    bool free_ = false;
};

TEST_F(RunAhead, IsBounded) {
    const Tensor x = filled(DType::f32, {64});
    for (const int before : {0, 1, 3 * kMost}) {
        for (int i = 0; i < before; ++i) zero(b_, x);
        get(x, 0);  // all of them have ended
        free_ = false;
        block();
        int queued = 0, most = 0;
        b_.set_wait([&](const std::function<bool()>& ready, const std::string&) {
            most = queued;
            free_ = true;
            while (!ready()) continue;
        });
        for (; queued < 2 * kMost && most == 0; ++queued) zero(b_, x);
        b_.set_wait({});
        free_ = true;
        EXPECT_GT(most, kMost / 2);
        EXPECT_LE(most, kMost);
    }
}

TEST_F(RunAhead, CountsTheLaunchesOfAttention) {
    if (!b_.fused_attention()) GTEST_SKIP() << "this build is without cuDNN";
    constexpr std::int64_t kHeads = 1, kDim = 8, kWide = 3 * kDim;
    // Whether the host waits in one call over so many launches, of 16 sequences of one row each.
    const auto waits = [&](int launches, bool backward) {
        std::vector<std::int32_t> offsets(static_cast<std::size_t>(16 * launches + 1));
        std::iota(offsets.begin(), offsets.end(), 0);
        const VarlenMask mask = causal_mask(offsets);
        const std::int64_t rows = 16 * launches;
        const Tensor q = filled(DType::bf16, {rows, kDim}, 1), k = filled(DType::bf16, {rows, kDim}, 1),
                     qkv = filled(DType::bf16, {rows, kWide}, 1), out = filled(DType::bf16, {rows, kDim}),
                     lse = filled(DType::f32, {rows, kHeads}), dq = filled(DType::bf16, {rows, kDim}),
                     dk = filled(DType::bf16, {rows, kDim}), dqkv = filled(DType::bf16, {rows, kWide});
        attention(b_, q, k, qkv, mask, out, lse, scratch_);
        get(out, 0);  // has ended
        free_ = false;
        block();
        bool waited = false;
        b_.set_wait([&](const std::function<bool()>& ready, const std::string&) {
            if (ready()) return;
            waited = free_ = true;
            while (!ready()) continue;
        });
        if (backward)
            attention_backward(b_, out, out, q, k, qkv, lse, mask, dq, dk, dqkv, scratch_);
        else
            attention(b_, q, k, qkv, mask, out, lse, scratch_);
        b_.set_wait({});
        free_ = true;
        get(out, 0);
        return waited;
    };
    EXPECT_FALSE(waits(kMost / 2, false)) << "forward of 80 launches";
    EXPECT_TRUE(waits(kMost / 2, true)) << "backward of 80 launches";
    EXPECT_TRUE(waits(2 * kMost, false)) << "forward of 320 launches";
}

TEST_F(RunAhead, EndsWithTheErrorOfTheWait) {
    const Tensor x = filled(DType::f32, {64});
    block();
    b_.set_wait([](const std::function<bool()>&, const std::string& what) {
        throw std::runtime_error("waited for " + what);
    });
    EXPECT_THROW(for (int i = 0; i < 2 * kMost; ++i) zero(b_, x), std::runtime_error);
    b_.set_wait({});
    free_ = true;
}

}  // namespace
}  // namespace maestro::ops
