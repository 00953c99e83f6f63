// What one call of attention works on.
#pragma once

#include <cstdint>

#include "base/tensor.hpp"
#include "ops/attention/attention.hpp"

namespace maestro::ops {

/// The tensors that a call reads and writes, with the shapes of attention.hpp. Those from dout on are absent
/// in the forward pass.
struct AttentionTensors {
    Tensor q, k, values, out, lse;
    Tensor dout{}, dq{}, dk{}, dvalues{};
    bool backward() const { return dq.rank > 0; }
};

/// Everything of a call that its implementation and its tables depend on, besides the mask.
struct AttentionShape {
    DType inputs, results;  ///< of the queries, and of the output or of the gradients
    bool backward;
    bool aligned;  ///< whether all rows are bf16 and begin at multiples of 16 bytes
    bool gaps;     ///< whether no result shares its rows with other data
    std::int64_t query_rows, key_rows, heads;
    std::int64_t query_width, key_width, value_width, gradient_width;
    bool operator==(const AttentionShape&) const = default;
};
AttentionShape attention_shape(const AttentionTensors& t);

/// The sizes of a call.
struct AttentionSizes {
    std::int64_t heads = 0, kv_heads = 0, dim = 0;
    std::int64_t value_width = 0;  ///< columns of `values`
    std::int64_t max_seqlen = 0;   ///< most queries or keys of a sequence
    double score_pairs = 0;        ///< pairs of a query and a key that it attends to, over all heads
    double mean_keys = 0;          ///< keys of a query's sequence, whether it attends to them or not
};
/// Returns the sizes of a call. Throws Error(broken_invariant) where shapes and mask do not fit together.
AttentionSizes attention_sizes(const AttentionTensors& t, const VarlenMask& mask);

}  // namespace maestro::ops
