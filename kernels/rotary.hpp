// GPU implementation of ops/rotary.hpp.
#pragma once

#include <span>

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/row_chunks.hpp"
#include "spec/rotary_pairs.hpp"

namespace maestro::kernels {

/// cos, sin [T, C] of the angles of C pairs, from positions[T] (i32) along each axis.
void fill_rotary(Stream stream, std::span<const Array> positions, const RotaryPairs& pairs, const Array& cos,
                 const Array& sin);

/// A head has 2 * cos.columns channels, at most 256.
void head_norm_rotary(Stream stream, const Array& qkv, const Array& q_norm, const Array& k_norm,
                      const Array& cos, const Array& sin, const Array& q, const Array& k, const Array& rstd,
                      double eps);

/// The chunks that `heads` heads, over all rows, are divided into for the gradient of a norm's weights. Each
/// chunk has a partial sum. There are more of them than row_chunks(), because this kernel reads the heads,
/// and enough loads must be in flight.
inline std::int64_t head_chunks(std::int64_t heads) {
    const std::int64_t chunks = (heads + 63) / 64;
    return chunks < 512 ? chunks : 512;
}
/// q_partial [head_chunks(T * H), D] and k_partial [head_chunks(T * K), D] are scratch of the accumulation
/// type, unused where dq_norm and dk_norm are absent.
void head_norm_rotary_backward(Stream stream, const Array& dq, const Array& dk, const Array& qkv,
                               const Array& q_norm, const Array& k_norm, const Array& cos, const Array& sin,
                               const Array& rstd, const Array& dqkv, const Array& dq_norm,
                               const Array& dk_norm, const Array& q_partial, const Array& k_partial);

}  // namespace maestro::kernels
