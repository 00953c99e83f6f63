#include "ops/attention/implementation.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "backend/fused_attention.hpp"

namespace maestro::ops {

namespace {

/// But on 10.x a fixed order of summation takes the gradients of all scores of a sequence, bf16, at a time.
/// What needs more than this is left to kernels whose memory does not grow so.
constexpr std::int64_t kScoreBytes = std::int64_t{4} << 30;

constexpr std::int64_t kShortest = 128;  ///< that plans are built for

enum class Sight { causal, full, other };

/// Sequences without keys or without queries are other: what the library writes for them is not documented.
Sight sight_of(const Visible& v) {
    bool full = true;
    for (std::size_t s = 1; s < v.queries.size(); ++s) {
        const std::int32_t queries = v.queries[s] - v.queries[s - 1], keys = v.keys[s] - v.keys[s - 1];
        if ((queries == 0) != (keys == 0)) return Sight::other;
        for (std::int32_t t = v.queries[s - 1]; t < v.queries[s]; ++t)
            full = full && v.seen[static_cast<std::size_t>(t)] == keys;
    }
    return v.diagonal ? Sight::causal : full ? Sight::full : Sight::other;
}

}  // namespace

std::int64_t planned_rows(std::int64_t rows) {
    return std::max(kShortest, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows))));
}

std::int64_t most_planned_rows(const AttentionCase& c) {
    if (!c.backward || c.architecture / 10 == 10) return std::numeric_limits<std::int64_t>::max();
    std::int64_t rows = kShortest;
    while (8 * rows * rows * c.heads <= kScoreBytes) rows *= 2;
    return rows;
}

AttentionForm attention_form(const AttentionCase& c, bool causal) {
    using backend::BackwardForm;
    const BackwardForm backward = backend::backward_form(c.architecture);
    const bool types = c.inputs == DType::bf16 && c.results == DType::bf16;
    const bool sizes = c.dim % 8 == 0 && c.dim <= 128 && c.longest > 0 && c.aligned;
    if (backward == BackwardForm::none || !types || !sizes || planned_rows(c.longest) > most_planned_rows(c))
        return AttentionForm::kernel;
    if (c.backward && backward == BackwardForm::padded)
        return causal ? AttentionForm::padded_causal : AttentionForm::padded_full;
    return causal ? AttentionForm::packed_causal : AttentionForm::packed_full;
}

AttentionForm attention_form(const AttentionCase& c, const Visible& visible) {
    if (attention_form(c, true) == AttentionForm::kernel) return AttentionForm::kernel;
    const Sight sight = sight_of(visible);
    return sight == Sight::other ? AttentionForm::kernel : attention_form(c, sight == Sight::causal);
}

}  // namespace maestro::ops
