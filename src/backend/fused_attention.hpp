// Attention as one fused operation of a device's library (cuDNN), over sequences of similar lengths, packed
// or each padded to the longest. ops/attention decides for which calls it is used; everything else runs
// kernels of this program.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace maestro::backend {

/// What a plan is built for. Lengths and offsets are data of a call, so that few plans serve all
/// micro-batches. H query heads share K KV heads of D bf16 elements; row widths count elements.
struct AttentionClass {
    bool backward = false, causal = false;
    /// Whether every sequence occupies `max_seqlen` rows, padding included; lse is then [sequences, H,
    /// max_seqlen].
    bool padded = false;
    std::int64_t heads = 0, kv_heads = 0, dim = 0;
    std::int64_t sequences = 0, max_seqlen = 0;  ///< the most that a call may have
    std::int64_t value_width = 0;                ///< width of the rows whose last columns are the values
    std::int64_t gradient_width = 0;             ///< the same for the gradients of the values; 0 in forward
    auto operator<=>(const AttentionClass&) const = default;
};

/// The arrays of a call. Offsets (int64, sequences + 1; unused where padded) say at which element each
/// sequence begins; lengths (int32) are by sequence. Padding rows of inputs must be finite; those of outputs
/// are undefined afterwards.
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

/// What a device's library has.
struct AttentionSupport {
    int architecture = 0;  ///< compute capability times 10 (90: 9.0); 0: no fused operation
    /// Whether the deterministic backward pass of long sequences does without the gradients of all scores
    /// (cuDNN 9.25 on 9.0). It is slower then, because parts of dq are added one after another.
    bool linear_backward = false;
    bool operator==(const AttentionSupport&) const = default;
};
/// The first version of cuDNN whose deterministic backward pass can take memory linear in the length, on 9.0.
/// It is also the first one that NVIDIA has tested with empty sequences in ragged backward passes.
inline constexpr std::size_t kLinearBackward = 92500;
/// Returns what cuDNN has on an architecture. `cudnn`: its version (91900: 9.19.0), 0 where there is none.
AttentionSupport attention_support_of(int architecture, std::size_t cudnn);
/// Where `linear_backward` holds, a plan keeps the gradients of all scores, in bf16, up to so many bytes.
inline constexpr std::int64_t kMostScoreGradients = std::int64_t{256} << 20;

/// Which form of sequences the library's deterministic backward pass accepts on an architecture. Where there
/// is any, the forward pass accepts packed ones.
enum class BackwardForm { none, padded, packed };
BackwardForm backward_form(int architecture);

/// Returns the bytes of workspace that a plan of the class may use at most.
std::size_t attention_workspace(const AttentionClass& c, const AttentionSupport& support);

/// The fused operation. Owns its plans and keeps them until the end. Not thread-safe.
class FusedAttention {
public:
    virtual ~FusedAttention() = default;
    /// Builds the plan of a class unless it exists already, which takes about a second. Returns false, and
    /// logs the reason, where the library has no plan within attention_workspace().
    virtual bool prepare(const AttentionClass& c) = 0;
    /// Runs the plan of a prepared class, in the order of the device's operations. `workspace` has
    /// attention_workspace() bytes. Arrays of the backward pass are ignored in forward, and offsets where
    /// sequences are padded.
    virtual void run(const AttentionClass& c, const AttentionArrays& arrays, void* workspace) = 0;
    virtual std::size_t plans() const = 0;  ///< number of plans built so far
};

}  // namespace maestro::backend
