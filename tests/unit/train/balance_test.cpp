// The bias by which a router balances its experts: what an update does with it.
#include <gtest/gtest.h>

#include "backend/cpu/host_memory.hpp"
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

/// Counts copies to and from the device, each of which makes the host wait for a GPU.
class CountsCopies final : public backend::HostMemory {
public:
    std::string describe() const override { return "counts copies"; }
    bool computes() const override { return true; }
    int threads() const override { return 1; }
    void gemm(const Gemm&) override { FAIL() << "no GEMM moves a bias"; }
    void grouped_gemm(const GroupedGemm&) override { FAIL() << "no GEMM moves a bias"; }
    void upload(const void* source, const Tensor& target) override {
        ++uploads;
        HostMemory::upload(source, target);
    }
    void download(const Tensor& source, void* target) override {
        ++downloads;
        HostMemory::download(source, target);
    }
    int uploads = 0, downloads = 0;
};

TEST(BalanceBias, MovesThoseOfAllLayersByOneCopy) {
    CountsCopies backend;
    const parallel::Mesh mesh = parallel::single_rank_mesh();
    parallel::ParameterStore store(backend, mesh, "text", 1, DType::f32);
    std::vector<model::ExpertLoad> loads;
    for (int layer = 0; layer < 3; ++layer) {
        parallel::Parameter& bias =
            store.declare(std::to_string(layer) + ".router.bias", {2}, parallel::Init::zeros, true);
        bias.balance_step = 0.25;
        loads.push_back({.layer = layer, .choices = {layer, 4 - layer}, .bias = &bias});
    }
    store.allocate(1);
    Optimizer optimizer(backend, store);
    backend.uploads = backend.downloads = 0;
    optimizer.balance(loads);
    EXPECT_EQ(backend.uploads, 1);
    EXPECT_EQ(backend.downloads, 0);
    EXPECT_EQ(loads[0].bias->weight.as<float>()[0], 0.25f);
    EXPECT_EQ(loads[1].bias->weight.as<float>()[1], -0.25f);
    EXPECT_EQ(loads[2].bias->weight.as<float>()[0], 0);
}

}  // namespace
}  // namespace maestro::train
