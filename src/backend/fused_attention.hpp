// Attention as one operation of a device's library, over packed sequences of similar lengths. What it takes
// is decided in ops/; where there is none (architecture 0) kernels of our own do the work.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace maestro::backend {

/// What plans are built for: few of them, since lengths and offsets are data. H query heads share K key heads
/// of D elements, bf16; row widths count elements.
struct AttentionClass {
    bool backward = false, causal = false;
    std::int64_t heads = 0, key_heads = 0, dim = 0;
    std::int64_t sequences = 0, longest = 0;  ///< at most
    std::int64_t value_width = 0;             ///< of a row that ends with the values of its token
    std::int64_t gradient_width = 0;          ///< the same for their gradients; 0 without backward
    auto operator<=>(const AttentionClass&) const = default;
};

/// What a plan reads and writes. Offsets (int64, sequences + 1) are where each sequence begins, in elements;
/// lengths (int32) are by sequence, 0 where there are fewer.
enum class AttentionArray {
    q,
    k,
    values,
    out,
    lse,  ///< f32 [T, H], natural logarithms
    dout,
    dq,
    dk,
    dvalues,
    q_offsets,  ///< of q, out, dout and dq
    k_offsets,  ///< of k and dk
    value_offsets,
    lse_offsets,
    dvalue_offsets,
    q_lengths,
    k_lengths,
    count
};
using AttentionArrays = std::array<void*, static_cast<std::size_t>(AttentionArray::count)>;
inline void*& of(AttentionArrays& arrays, AttentionArray which) {
    return arrays[static_cast<std::size_t>(which)];
}

/// Bytes beside the arrays that any plan of the class may use on that architecture (90: compute capability
/// 9.0).
std::size_t attention_workspace(const AttentionClass& c, int architecture);

/// Not thread-safe. Plans are kept: the first use of a class compiles one, which takes about a second.
class FusedAttention {
public:
    virtual ~FusedAttention() = default;
    /// In the order of the device's operations. `workspace`: attention_workspace bytes. Arrays of backward
    /// are not looked at in forward.
    virtual void run(const AttentionClass& c, const AttentionArrays& arrays, void* workspace) = 0;
    virtual std::size_t plans() const = 0;  ///< built so far
};

}  // namespace maestro::backend
