#include "backend/fused_attention.hpp"

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
        default:  // 10.x: the Blackwells of data centres
            return architecture / 10 == 10 ? BackwardForm::packed : BackwardForm::none;
    }
}

std::size_t attention_workspace(const AttentionClass& c, int architecture) {
    // Descriptors of the arrays, some of them for each of at most 16 sequences, and what rounding up
    // takes.
    const std::int64_t fixed = 128 * 1024;
    if (!c.backward) return static_cast<std::size_t>(fixed);
    // For each query and head: the softmax's shared term and the sums of dq, or, where an order of summation
    // that is always the same asks for them, the gradients of all scores; for each key and query head its
    // share of dk and dv.
    const std::int64_t scores = architecture / 10 == 10 ? 0 : 2 * c.max_seqlen;
    const std::int64_t each = scores + 4 + 8 * c.dim;
    return static_cast<std::size_t>(fixed + c.sequences * c.max_seqlen * c.heads * each);
}

}  // namespace maestro::backend
