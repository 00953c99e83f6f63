#include "backend/fused_attention.hpp"

#include <algorithm>

namespace maestro::backend {

BackwardForm backward_form(int architecture) {
    switch (architecture) {
        case 80:
        case 86:
        case 89:
        case 120:
        case 121:
            return BackwardForm::padded;
        case 90:
            return BackwardForm::packed;
        default:  // 10.x: data-centre Blackwell
            return architecture / 10 == 10 ? BackwardForm::packed : BackwardForm::none;
    }
}

AttentionSupport attention_support_of(int architecture, std::size_t cudnn) {
    if (backward_form(architecture) == BackwardForm::none || cudnn == 0) return {};
    return {.architecture = architecture, .linear_backward = architecture == 90 && cudnn >= kLinearBackward};
}

std::size_t attention_workspace(const AttentionClass& c, const AttentionSupport& support) {
    // Tensor descriptors, some of them for each sequence, and what alignment adds.
    const std::int64_t fixed = 1024 * std::max<std::int64_t>(128, c.sequences);
    if (!c.backward) return static_cast<std::size_t>(fixed);
    // Per query and head: the row sum of the softmax's backward pass and an fp32 accumulator of dq, or, on
    // architectures where a fixed order of summation requires them, the gradients of all scores. Per key and
    // query head: its part of dk and dv, which are summed over the query heads at the end.
    const std::int64_t rows = c.sequences * c.max_seqlen * c.heads;
    const bool linear = support.architecture / 10 == 10 ||
                        (support.linear_backward && 2 * rows * c.max_seqlen > kMostScoreGradients);
    const std::int64_t each = (linear ? 0 : 2 * c.max_seqlen) + 4 + 8 * c.dim;
    // The order in which tiles of 64 queries add to dq: a counter of 8 bytes for each.
    const std::int64_t order = linear ? rows / 8 : 0;
    return static_cast<std::size_t>(fixed + rows * each + order);
}

}  // namespace maestro::backend
