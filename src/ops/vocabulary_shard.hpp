// The steps of a loss whose logits are split over the vocabulary (Shoeybi et al., "Megatron-LM", 2019).
#pragma once

#include <cstdint>
#include <functional>

#include "base/shard.hpp"
#include "kernels/loss_steps.hpp"
#include "ops/dispatch.hpp"
#include "ops/reduce.hpp"

namespace maestro::ops {

/// The part of the vocabulary whose logits this rank has.
struct VocabularyShard {
    Range tokens;
    /// Replaces the values of this rank, in place, by their sum or maximum over the ranks that have the other
    /// parts. Empty where this rank has the whole vocabulary.
    std::function<void(const Tensor& values, Reduction op)> combine;

    bool has(std::int32_t token) const { return token >= tokens.begin && token < tokens.end; }
};

/// Runs the three steps of a loss (kernels::LossSteps) over rows [0, n): step(i, row) on the CPU or
/// kernel(stream, steps) on a GPU. Step 0 writes `maxima` and step 1 writes `sums`.
///
/// Where one rank has the whole vocabulary, a row goes through all steps at once, so that its logits stay in
/// the cache. Otherwise all rows go through one step before the next, and `maxima` and `sums` are combined
/// over the ranks in between. `work` is that of all steps together, work_each that of one row; finish() is
/// called on the CPU after the last step.
template <class Step, class Finish, class Kernel>
void run_loss_steps(backend::Backend& b, const backend::Work& work, const VocabularyShard& shard,
                    const Tensor& maxima, const Tensor& sums, std::int64_t rows, std::int64_t work_each,
                    Step&& step, Finish&& finish, Kernel&& kernel) {
    using kernels::LossSteps;
    const auto run = [&](LossSteps steps) {
        const int launches = LossSteps::kAll / (steps.last - steps.first);
        b.launch(
            {work.flops / launches, work.bytes / launches, work.side, work.dtype, work.where},
            [&] {
                parallel_for(rows, work_each, [&](std::int64_t r) {
                    for (int i = steps.first; i < steps.last; ++i) step(i, r);
                });
                if (steps.end()) finish();
            },
            [&](Stream stream) { kernel(stream, steps); });
    };
    if (!shard.combine) return run({0, LossSteps::kAll});
    run({0, 1});
    shard.combine(maxima, Reduction::max);
    run({1, 2});
    shard.combine(sums, Reduction::sum);
    run({2, LossSteps::kAll});
}

}  // namespace maestro::ops
