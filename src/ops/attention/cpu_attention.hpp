// Attention on the CPU: FlashAttention-2's blocks of queries, with a GEMM for each block of scores.
#pragma once

#include "backend/arena.hpp"
#include "ops/attention/attention_tensors.hpp"

namespace maestro::ops {

/// Allocates a row of scratch memory for each thread of the host; returns an absent tensor for a device that
/// does not share the host's memory.
Tensor cpu_attention_scratch(const backend::Backend& b, const AttentionTensors& t, const AttentionSizes& s,
                             backend::Arena& arena);
/// The forward or the backward pass, whichever `t` is for. The result does not depend on the number of
/// threads.
void cpu_attention(const AttentionTensors& t, const VarlenMask& mask, const AttentionSizes& s,
                   const Tensor& scratch);

}  // namespace maestro::ops
