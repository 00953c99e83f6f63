#include "backend/fused_attention.hpp"

namespace maestro::backend {

std::size_t attention_workspace(const AttentionClass& c, int architecture) {
    // Descriptors of the packed arrays, some of them for each of at most 16 sequences, and what rounding up
    // takes.
    const std::int64_t fixed = 128 * 1024;
    if (!c.backward) return static_cast<std::size_t>(fixed);
    // For each query and head: the softmax's shared term and the sums of dq, or, where an order of summation
    // that is always the same asks for them, the gradients of all scores; for each key and query head its
    // share of dk and dv.
    const std::int64_t scores = architecture / 10 == 9 ? 2 * c.longest : 0;
    const std::int64_t each = scores + 4 + 8 * c.dim;
    return static_cast<std::size_t>(fixed + c.sequences * c.longest * c.heads * each);
}

}  // namespace maestro::backend
