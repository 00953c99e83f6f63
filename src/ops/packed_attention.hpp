// Attention over packed sequences by a device's fused operation, in launches of few shapes: each takes
// sequences that follow each other, as many as its class has room for.
#pragma once

#include <vector>

#include "backend/arena.hpp"
#include "backend/fused_attention.hpp"
#include "ops/attention_form.hpp"

namespace maestro::ops {

/// Sequences [first, first + count) in a plan for `sequences` of at most `longest` rows each.
struct AttentionLaunch {
    std::int64_t first = 0, count = 0;
    std::int64_t sequences = 0, longest = 0;
    bool operator==(const AttentionLaunch&) const = default;
};

/// All sequences but empty ones, in order. Lengths are rounded up to powers of two from 128, and a launch has
/// room for 2048 rows, or for one sequence that is longer.
std::vector<AttentionLaunch> attention_launches(const Visible& visible);

/// What a call reads and writes; those of backward absent in forward.
struct AttentionTensors {
    Tensor q, k, values, out, lse;
    Tensor dout{}, dq{}, dk{}, dvalues{};
    bool backward() const { return dq.rank > 0; }
};

class PackedAttention {
public:
    /// Takes scratch and hands over lengths and offsets.
    PackedAttention(backend::Backend& b, const AttentionTensors& t, const Visible& visible, bool causal,
                    const AttentionCase& c, backend::Arena& scratch);
    void run(backend::FusedAttention& device) const;

private:
    backend::AttentionClass class_of(const AttentionLaunch& launch) const;
    /// Appends the launch's lists to `words`.
    void list(const AttentionLaunch& launch, const Visible& visible, std::vector<std::int32_t>& words) const;

    AttentionTensors tensors_;
    bool causal_;
    std::int64_t heads_, key_heads_, dim_;
    std::vector<AttentionLaunch> launches_;
    Tensor lists_, workspace_;
};

}  // namespace maestro::ops
