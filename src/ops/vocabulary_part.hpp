// Losses over a vocabulary whose logits several ranks share out (Shoeybi et al., "Megatron-LM", 2019).
#pragma once

#include <cstdint>
#include <functional>

#include "base/shard.hpp"
#include "ops/dispatch.hpp"
#include "ops/reduce.hpp"

namespace maestro::ops {

/// The tokens whose logits are here.
struct VocabularyPart {
    Range tokens;
    /// Turns values, in place, into their sum or maximum over the ranks that have the other tokens' logits.
    /// Empty where all are here.
    std::function<void(const Tensor& values, Reduction how)> combine;

    bool has(std::int32_t token) const { return token >= tokens.begin && token < tokens.end; }
};

/// The steps of a loss over rows [0, n), and between them what the other ranks found: step(i, row) for i in
/// [0, steps), all steps of a row at once where there are no others, so that its logits stay in the cache.
/// `work` is that of all steps.
template <class Step, class Combine>
void by_row(backend::Backend& b, const backend::Work& work, const VocabularyPart& part, std::int64_t rows,
            std::int64_t work_each, int steps, Step&& step, Combine&& combine) {
    const auto run = [&](int first, int last) {
        parallel_for(rows, work_each, [&](std::int64_t r) {
            for (int i = first; i < last; ++i) step(i, r);
        });
    };
    if (!part.combine) {
        b.launch(work, [&] { run(0, steps); });
        return;
    }
    for (int i = 0; i < steps; ++i) {
        b.launch({work.flops / steps, work.bytes / steps}, [&] { run(i, i + 1); });
        if (i + 1 < steps) combine(i);
    }
}

}  // namespace maestro::ops
