// Losses over a vocabulary whose logits several ranks share out (Shoeybi et al., "Megatron-LM", 2019).
#pragma once

#include <cstdint>
#include <functional>

#include "base/shard.hpp"
#include "kernels/loss_steps.hpp"
#include "ops/dispatch.hpp"
#include "ops/reduce.hpp"

namespace maestro::ops {

/// The tokens whose logits are here.
struct VocabularyShard {
    Range tokens;
    /// Turns values, in place, into their sum or maximum over the ranks that have the other tokens' logits.
    /// Empty where all are here.
    std::function<void(const Tensor& values, Reduction how)> combine;

    bool has(std::int32_t token) const { return token >= tokens.begin && token < tokens.end; }
};

/// The steps of a loss over rows [0, n): step(i, row) on the CPU, kernel(stream, steps) on a GPU. All steps
/// of a row at once where no other ranks have a part, so that its logits stay in the cache; else one by one,
/// and in between `tops`, which the first leaves, and `sums`, which the second does, become those over all
/// ranks. `work` is that of all steps; finish() comes after the last of all rows on the CPU.
template <class Step, class Finish, class Kernel>
void by_row(backend::Backend& b, const backend::Work& work, const VocabularyShard& part, const Tensor& tops,
            const Tensor& sums, std::int64_t rows, std::int64_t work_each, Step&& step, Finish&& finish,
            Kernel&& kernel) {
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
    if (!part.combine) return run({0, LossSteps::kAll});
    run({0, 1});
    part.combine(tops, Reduction::max);
    run({1, 2});
    part.combine(sums, Reduction::sum);
    run({2, LossSteps::kAll});
}

}  // namespace maestro::ops
