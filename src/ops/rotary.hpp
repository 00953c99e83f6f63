// Rotary positions (Su et al., "RoFormer", 2021; halves rotated as in Hugging Face) with the per-head norm of
// Qwen3. T rows, H query heads, K key heads, D channels a head.
#pragma once

#include <cstdint>

#include "backend/arena.hpp"

namespace maestro::ops {

/// cos, sin [T, D/2]: angle = position * theta^(-2j/D).
void fill_rotary_1d(backend::Backend& b, const Tensor& positions, double theta, const Tensor& cos,
                    const Tensor& sin);
/// The first D/4 pairs turn by y, the others by x, with theta^(-2j/(D/2)) (Qwen2-VL's vision encoder).
void fill_rotary_2d(backend::Backend& b, const Tensor& y, const Tensor& x, double theta, const Tensor& cos,
                    const Tensor& sin);

/// q[T,H*D] and k[T,K*D] from qkv[T,(H+2K)*D]: RMSNorm of each head (weights q_norm[D], k_norm[D]; empty:
/// none), then the rotation. rstd[T,H+K] is kept for backward.
void head_norm_rotary(backend::Backend& b, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                      const Tensor& cos, const Tensor& sin, const Tensor& q, const Tensor& k,
                      const Tensor& rstd, double eps);
/// Writes the q and k columns of dqkv; dq_norm, dk_norm += (empty where frozen or without a norm).
void head_norm_rotary_backward(backend::Backend& b, const Tensor& dq, const Tensor& dk, const Tensor& qkv,
                               const Tensor& q_norm, const Tensor& k_norm, const Tensor& cos,
                               const Tensor& sin, const Tensor& rstd, const Tensor& dqkv,
                               const Tensor& dq_norm, const Tensor& dk_norm, backend::Arena& scratch);

}  // namespace maestro::ops
