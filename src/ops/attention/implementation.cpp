#include "ops/attention/implementation.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "backend/fused_attention.hpp"

namespace maestro::ops {

namespace {

/// Except on architecture 10.x, and on 9.0 with a library that has the linear backward pass, the
/// deterministic one holds the gradients of all scores of a sequence, in bf16. Sequences that would need more
/// memory than this use the kernels, whose memory is linear in the length.
constexpr std::int64_t kScoreBytes = std::int64_t{4} << 30;

constexpr std::int64_t kShortest = 128;  ///< the shortest sequences that plans are built for

/// `rectangles`: of each sequence, the last queries attend to the same first keys. The library is not shown
/// the other rows, since it does not document what it writes for queries without keys.
enum class MaskForm { causal, full, rectangles, other };

MaskForm form_of(const VarlenMask& v) {
    if (v.causal) return MaskForm::causal;
    bool full = true;
    for (std::size_t s = 1; s < v.cu_seqlens_q.size(); ++s) {
        const std::int32_t keys = v.cu_seqlens_k[s] - v.cu_seqlens_k[s - 1];
        full = full && (v.cu_seqlens_q[s] > v.cu_seqlens_q[s - 1] || keys == 0);
        std::int32_t before = 0;
        for (std::int32_t t = v.cu_seqlens_q[s - 1]; t < v.cu_seqlens_q[s]; ++t) {
            const std::int32_t limit = v.kv_limit[static_cast<std::size_t>(t)];
            if (before > 0 && limit != before) return MaskForm::other;
            before = limit;
            full = full && limit == keys && keys > 0;
        }
    }
    return full ? MaskForm::full : MaskForm::rectangles;
}

}  // namespace

std::int64_t planned_seqlen(std::int64_t rows) {
    return std::max(kShortest, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows))));
}

std::int64_t max_planned_seqlen(const AttentionCase& c) {
    if (!c.backward || c.support.linear_backward || c.support.architecture / 10 == 10)
        return std::numeric_limits<std::int64_t>::max();
    std::int64_t rows = kShortest;
    while (8 * rows * rows * c.heads <= kScoreBytes) rows *= 2;
    return rows;
}

AttentionImplementation attention_implementation(const AttentionCase& c, bool causal) {
    using backend::BackwardForm;
    const BackwardForm backward = backend::backward_form(c.support.architecture);
    const bool types = c.inputs == DType::bf16 && c.results == DType::bf16;
    const std::int64_t largest = c.support.architecture == 90 ? 256 : 128;
    const bool sizes = c.dim % 8 == 0 && c.dim <= largest && c.max_seqlen > 0 && c.aligned;
    if (backward == BackwardForm::none || !types || !sizes ||
        planned_seqlen(c.max_seqlen) > max_planned_seqlen(c))
        return AttentionImplementation::kernel;
    if (c.backward && backward == BackwardForm::padded)
        return causal ? AttentionImplementation::padded_causal : AttentionImplementation::padded_full;
    return causal ? AttentionImplementation::packed_causal : AttentionImplementation::packed_full;
}

AttentionImplementation attention_implementation(const AttentionCase& c, const VarlenMask& mask) {
    if (attention_implementation(c, true) == AttentionImplementation::kernel)
        return AttentionImplementation::kernel;
    const MaskForm form = form_of(mask);
    const AttentionImplementation implementation = attention_implementation(c, form == MaskForm::causal);
    const bool possible =
        form == MaskForm::rectangles ? c.gaps && !is_padded(implementation) : form != MaskForm::other;
    return possible ? implementation : AttentionImplementation::kernel;
}

}  // namespace maestro::ops
