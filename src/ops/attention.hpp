// Softmax attention over packed sequences of different lengths, without padding; grouped queries (H query
// heads share K key heads). Blocks of queries against the keys that they may see, as in FlashAttention-2
// (Dao, 2023): the [T, T] matrix never exists.
#pragma once

#include <cstdint>
#include <span>

#include "backend/arena.hpp"

namespace maestro::ops {

/// q[T,H*D], k[T,K*D], values in the last K*D columns of qkv[T,(H+2K)*D]; sequence s is rows
/// offsets[s]..offsets[s+1] (host, ascending, from 0 to T). out[T,H*D]; lse[T,H] (accumulation type) is kept
/// for backward. Scale 1/sqrt(D).
void attention(backend::Backend& b, const Tensor& q, const Tensor& k, const Tensor& qkv,
               std::span<const std::int32_t> offsets, bool causal, const Tensor& out, const Tensor& lse,
               backend::Arena& scratch);
/// Writes dq, dk and the value columns of dqkv.
void attention_backward(backend::Backend& b, const Tensor& dout, const Tensor& out, const Tensor& q,
                        const Tensor& k, const Tensor& qkv, const Tensor& lse,
                        std::span<const std::int32_t> offsets, bool causal, const Tensor& dq,
                        const Tensor& dk, const Tensor& dqkv, backend::Arena& scratch);

}  // namespace maestro::ops
