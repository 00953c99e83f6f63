// How far the host runs ahead of the device.
#include <gtest/gtest.h>

#include <stdexcept>

#include "backend/cuda/run_ahead.hpp"
#include "hosted/hosted.hpp"
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
