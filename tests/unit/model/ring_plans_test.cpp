// Which attention plans of a device's library a ring uses.
#include <gtest/gtest.h>

#include <vector>

#include "parallel/context_attention.hpp"
#include "support/device.hpp"

namespace maestro::parallel {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kWidth = kHeads * kDim,
                       kKvWidth = kKvHeads * kDim;

/// The device of one of two ranks. Its group is a meta group, so that the keys of the other slice have any
/// values.
class Ring {
public:
    Ring(int rank, AttentionMask mask, std::int64_t length)
        : mask_(mask),
          length_(length),
          device_(testing_support::make_device(1)),
          mesh_(make_meta_mesh(rank, {.degrees = {2, 1}})),
          context_(*device_, mesh_, DType::bf16, kDim),
          memory_(*device_, std::size_t{16} << 20) {}
    /// Whether the device has plans at all.
    bool has_plans() const { return device_->fused_attention() != nullptr; }
    std::size_t plans() const { return device_->fused_attention()->plans(); }
    void prepare() const {
        for (const bool backward : {false, true})
            context_.prepare(std::span(&length_, 1), 1, mask_, kHeads, kKvHeads, backward);
    }
    /// Returns how many tables two layers have made.
    std::size_t run() {
        const Sequences sequences(Partition(std::span(&length_, 1), mask_, mesh_.degrees()), mask_, mesh_);
        ContextMasks masks(sequences, mesh_);
        masks.copy_to_device(*device_, true, 1, memory_);
        const std::int64_t rows = sequences.rows;
        const auto tensor = [&](std::int64_t columns) {
            return memory_.allocate(DType::bf16, {rows, columns});
        };
        AttentionActivations a = context_.allocate(sequences, kHeads, kKvHeads, memory_, memory_);
        const Tensor qkv = tensor(kWidth + 2 * kKvWidth), out = tensor(kWidth), dout = tensor(kWidth),
                     dq = tensor(kWidth), dk = tensor(kKvWidth), dqkv = tensor(kWidth + 2 * kKvWidth);
        for (int layer = 0; layer < 2; ++layer) {
            context_.forward(a, a.q, a.k, qkv, masks, out, memory_);
            context_.backward(a, dout, out, masks, dq, dk, dqkv, memory_);
        }
        return masks.tables.size();
    }

private:
    AttentionMask mask_;
    std::int64_t length_;
    std::unique_ptr<backend::Backend> device_;
    Mesh mesh_;
    ContextAttention context_;
    backend::Arena memory_;
};

TEST(RingPlans, ComputeAllPartsAndAreBuiltByPrepare) {
    for (const AttentionMask mask : {AttentionMask::causal, AttentionMask::bidirectional})
        for (const int rank : {0, 1}) {
            Ring prepared(rank, mask, 300), unprepared(rank, mask, 300);
            if (!prepared.has_plans()) GTEST_SKIP() << "the device has no attention plans";
            EXPECT_EQ(unprepared.run(), 4U);
            EXPECT_EQ(unprepared.plans(), 4U);  // with the keys of either slice, forward and backward
            prepared.prepare();
            const std::size_t plans = prepared.plans();
            prepared.run();
            EXPECT_EQ(prepared.plans(), plans);
        }
}

}  // namespace
}  // namespace maestro::parallel
