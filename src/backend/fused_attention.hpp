// Attention as one operation of a device's library, over sequences of similar lengths, packed or each padded
// to the max_seqlen. What it takes is decided in ops/; where there is none (architecture 0) kernels of our
// own do the work.
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
    /// Sequences of `max_seqlen` rows, padding included, follow each other, and lse is [sequences, H,
    /// max_seqlen].
    bool padded = false;
    std::int64_t heads = 0, kv_heads = 0, dim = 0;
    std::int64_t sequences = 0, max_seqlen = 0;  ///< at most
    std::int64_t value_width = 0;                ///< of a row that ends with the values of its token
    std::int64_t gradient_width = 0;             ///< the same for their gradients; 0 without backward
    auto operator<=>(const AttentionClass&) const = default;
};

/// What a plan reads and writes. Offsets (int64, sequences + 1; none where padded) are where each sequence
/// begins, in elements; lengths (int32) are by sequence. What padded rows of inputs hold must be finite; in
/// those of outputs anything may be written.
enum class AttentionArray {
    q,
    k,
    values,
    out,
    lse,  ///< f32 [T, H] unless padded, natural logarithms
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

/// How backward takes sequences where sums are in a fixed order; forward has a packed form wherever there is
/// any.
enum class BackwardForm { none, padded, packed };
BackwardForm backward_form(int architecture);

/// Bytes beside the arrays that any plan of the class may use on that architecture (90: compute capability
/// 9.0).
std::size_t attention_workspace(const AttentionClass& c, int architecture);

/// Not thread-safe. Plans are kept.
class FusedAttention {
public:
    virtual ~FusedAttention() = default;
    /// Builds the class's plan unless there is one, which takes about a second. False where the library
    /// builds none that keeps to attention_workspace; the log has said why.
    virtual bool prepare(const AttentionClass& c) = 0;
    /// In the order of the device's operations; the class is prepared. `workspace`: attention_workspace
    /// bytes. Arrays of backward are not looked at in forward, nor offsets where it is padded.
    virtual void run(const AttentionClass& c, const AttentionArrays& arrays, void* workspace) = 0;
    virtual std::size_t plans() const = 0;  ///< built so far
};

}  // namespace maestro::backend
