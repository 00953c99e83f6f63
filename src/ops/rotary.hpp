// Rotary position embedding (Su et al., "RoFormer", 2021; rotate_half() of Hugging Face: channel j is paired
// with j + D/2), together with the RMSNorm of each query and key head of Qwen3. Shape letters: T rows, H
// query heads, K KV heads, D channels of a head.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/arena.hpp"
#include "spec/rotary_pairs.hpp"

namespace maestro::ops {

/// Pair j of a head of D = `dim` channels has the frequency theta^(-2j/D).
RotaryPairs rotary_1d(std::int64_t dim, double theta);
/// For patches of a picture: the first D/4 pairs rotate by the row, the others by the column, with the
/// frequencies theta^(-2j/(D/2)) each (Qwen2-VL's vision encoder). Throws Error(broken_invariant) if D is not
/// a multiple of 4.
RotaryPairs rotary_2d(std::int64_t dim, double theta);

/// For texts with pictures: as rotary_1d(), but pairs rotate by three positions in turn. Of the pairs j,
/// those with j % 3 = 1 below 3 sections[1] rotate by the row, those with j % 3 = 2 below 3 sections[2] by
/// the column, and all others by the time (Qwen3-VL's interleaved M-RoPE). Where the three are equal, this is
/// rotary_1d(). Throws Error(broken_invariant) unless the sections add up to D/2.
RotaryPairs rotary_3d(std::int64_t dim, double theta, const std::array<int, 3>& sections);

/// Divides the frequencies of pairs that turn less than low_frequency_factor times over the original length,
/// keeps those that turn more than high_frequency_factor times, and interpolates between.
void scale(RotaryPairs& pairs, const RotaryScaling& scaling);

/// cos[T, D/2], sin[T, D/2] of the angles of all pairs. positions[axis]: [T] (i32).
void fill_rotary(backend::Backend& b, std::span<const Tensor> positions, const RotaryPairs& pairs,
                 const Tensor& cos, const Tensor& sin);

/// q[T, H D] and k[T, K D] from qkv[T, (H + 2 K) D]: the RMSNorm of each head with the weights q_norm[D] and
/// k_norm[D], or none where these are absent, then the rotation. rstd[T, H + K], of the accumulation type, is
/// saved for backward.
void head_norm_rotary(backend::Backend& b, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                      const Tensor& cos, const Tensor& sin, const Tensor& q, const Tensor& k,
                      const Tensor& rstd, double eps);
/// Writes the first (H + K) D columns of dqkv[T, (H + 2 K) D] from dq[T, H D] and dk[T, K D], and adds to
/// dq_norm[D] and dk_norm[D], which are absent for frozen weights or without a norm.
void head_norm_rotary_backward(backend::Backend& b, const Tensor& dq, const Tensor& dk, const Tensor& qkv,
                               const Tensor& q_norm, const Tensor& k_norm, const Tensor& cos,
                               const Tensor& sin, const Tensor& rstd, const Tensor& dqkv,
                               const Tensor& dq_norm, const Tensor& dk_norm, backend::Arena& scratch);

}  // namespace maestro::ops
