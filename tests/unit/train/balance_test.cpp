// The bias by which a router balances its experts: what an update does with it.
#include <gtest/gtest.h>

#include "model/module.hpp"
#include "support/elements.hpp"
#include "train/step/optimizer.hpp"

namespace maestro::train {
namespace {

TEST(BalanceBias, MovesByOneStepAgainstTheExcess) {
    const auto backend = backend::make_cpu(1);
    const parallel::Mesh mesh = parallel::single_rank_mesh();
    parallel::ParameterStore store(*backend, mesh, "text", 1, DType::f32);
    const parallel::Parameter& weight = store.declare("weight", {2, 2}, parallel::Init::ones, true);
    parallel::Parameter& bias = store.declare("router.bias", {3}, parallel::Init::zeros, true);
    bias.balance_step = 0.25;
    store.allocate(1);
    store.zero_gradients();
    Optimizer optimizer(*backend, store);
    backend::Arena scratch(*backend, 1 << 16);
    for (std::int64_t i = 0; i < 4; ++i) weight.gradient.as<float>()[i] = 3;
    // One choice more and one less than the mean: numbers that f32 does not tell apart.
    const std::int64_t many = std::int64_t{1} << 40;
    const model::ExpertLoad load{.layer = 0, .choices = {many + 1, many - 1, many}, .bias = &bias};
    for (std::int64_t step = 1; step <= 2; ++step) {
        optimizer.add_squares(0, scratch);
        EXPECT_EQ(optimizer.take_squares(), 4 * 9.0);
        optimizer.balance(std::span(&load, 1));
        // The scale of clipping changes nothing, nor does the learning rate.
        optimizer.update(0, {.learning_rate = 0.125, .weight_decay = 0.5}, step, 1e-3);
    }
    const float* found = bias.weight.as<float>();
    EXPECT_EQ(found[0], -0.5f);
    EXPECT_EQ(found[1], 0.5f);
    EXPECT_EQ(found[2], 0);
    EXPECT_LT(weight.weight.as<float>()[0], 0) << "updated by AdamW";
}

}  // namespace
}  // namespace maestro::train
