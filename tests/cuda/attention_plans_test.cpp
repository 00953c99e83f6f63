// Attention plans of cuDNN: which are built and when, and the use of Maestro's kernels without a plan.
#include <gmock/gmock.h>

#include <cstdlib>

#include "ops/attention/attention.hpp"
#include "support/plain_attention.hpp"
#include "support/tensors.hpp"

namespace maestro::ops {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 16;

class AttentionPlans : public testing_support::Tensors {
protected:
    void TearDown() override {
        unsetenv("MAESTRO_HOSTED_CUDNN_WORKSPACE");
        Tensors::TearDown();
    }
    std::size_t plans() { return b_.fused_attention()->plans(); }
    static backend::AttentionClass shape(bool backward) {
        const std::int64_t width = (kHeads + 2 * kKvHeads) * kDim;
        return {.backward = backward,
                .causal = true,
                .heads = kHeads,
                .kv_heads = kKvHeads,
                .dim = kDim,
                .value_width = width,
                .gradient_width = backward ? width : 0};
    }
    void prepare(std::vector<std::int64_t> rows, std::int64_t sequences = 8) {
        for (const bool backward : {false, true})
            prepare_attention(b_, DType::bf16, shape(backward), rows, sequences);
    }
    /// Runs forward and backward over causal sequences of these lengths, and compares dq with the reference.
    void run_attention(const std::vector<std::int32_t>& lengths) {
        std::vector<std::int32_t> offsets{0};
        for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
        const VarlenMask mask = causal_mask(offsets);
        const std::int64_t rows = offsets.back(), wide = kHeads * kDim, narrow = kKvHeads * kDim;
        const Tensor q = random(DType::bf16, {rows, wide}), k = random(DType::bf16, {rows, narrow}),
                     qkv = random(DType::bf16, {rows, wide + 2 * narrow}),
                     dout = random(DType::bf16, {rows, wide}), out = filled(DType::bf16, {rows, wide}),
                     lse = filled(DType::f32, {rows, kHeads}), dq = filled(DType::bf16, {rows, wide}),
                     dk = filled(DType::bf16, {rows, narrow}),
                     dqkv = filled(DType::bf16, {rows, wide + 2 * narrow});
        attention(b_, q, k, qkv, mask, out, lse, scratch_);
        attention_backward(b_, dout, out, q, k, qkv, lse, mask, dq, dk, dqkv, scratch_);
        std::vector<double> all = values(qkv), v;
        for (std::int64_t i = 0; i < qkv.size(); ++i)
            if (i % qkv.columns() >= wide + narrow) v.push_back(all[static_cast<std::size_t>(i)]);
        testing_support::PlainAttention reference{kHeads, kKvHeads, kDim, mask, values(q), values(k),
                                                  v,      {},       {},   {},   {},        {}};
        reference.forward();
        reference.backward(values(dout));
        expect_near(dq, reference.dq, 3e-2, "dq");
    }
};

TEST_F(AttentionPlans, AreBuiltForEachLengthByPrepare) {
    prepare({1, 128, 100, 300, 0, 3000}, 4);
    EXPECT_EQ(plans(), 8U);  // 16 x 128, 4 x 512, 1 x 4096 and 2 x 4096, forward and backward
    prepare({5, 4096}, 4);
    EXPECT_EQ(plans(), 8U);
    run_attention({1, 17, 90});
    run_attention({300, 4, 260, 280});
    EXPECT_EQ(plans(), 8U);
    run_attention({129});
    EXPECT_EQ(plans(), 10U);
}

TEST_F(AttentionPlans, AreBuiltForMoreSequencesByPrepare) {
    prepare({256, 300}, 10);
    EXPECT_EQ(plans(), 10U);  // 8 and 16 x 256, 4, 8 and 16 x 512, forward and backward
    run_attention({129, 130, 131, 132, 133, 134, 135, 136, 137});
    run_attention({300, 260, 280, 290, 270, 5});
    EXPECT_EQ(plans(), 10U);
}

TEST_F(AttentionPlans, AreNotBuiltForOtherTypesAndHeads) {
    prepare_attention(b_, DType::f32, shape(true), std::vector<std::int64_t>{100}, 8);
    backend::AttentionClass odd = shape(false);
    odd.dim = 12;
    prepare_attention(b_, DType::bf16, odd, std::vector<std::int64_t>{100}, 8);
    EXPECT_EQ(plans(), 0U);
}

TEST_F(AttentionPlans, ThatNeedTooMuchWorkspaceAreReplacedByKernels) {
    setenv("MAESTRO_HOSTED_CUDNN_WORKSPACE", "1000000000000", 1);
    prepare({100});
    run_attention({1, 17, 90});
    EXPECT_EQ(plans(), 0U);
    unsetenv("MAESTRO_HOSTED_CUDNN_WORKSPACE");
    run_attention({300});
    EXPECT_EQ(plans(), 2U);
}

TEST(AttentionLibrary, MayFail) {
    setenv("MAESTRO_HOSTED_NO_CUDNN", "1", 1);
    const auto without = testing_support::make_device(1);
    unsetenv("MAESTRO_HOSTED_NO_CUDNN");
    EXPECT_EQ(without->fused_attention(), nullptr);
    EXPECT_EQ(without->attention_support().architecture, 0);
    EXPECT_THAT(without->describe(), testing::HasSubstr("fails: attention by Maestro's kernels"));
    EXPECT_THAT(without->describe(), testing::HasSubstr("no handle"));
    const auto with = testing_support::make_device(1);
    EXPECT_NE(with->fused_attention(), nullptr);
    EXPECT_EQ(with->attention_support().architecture, 90);
}

}  // namespace
}  // namespace maestro::ops
