// ops/rotary.hpp on a GPU.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/row_chunks.hpp"

namespace maestro::kernels {

/// cos, sin [T, C]: angle = position * theta^(-(j % turns) / turns) for column j; the position is one of
/// `first` for the first `turns` columns, and of `others` for the rest.
void fill_rotary(Stream stream, const Array& first, const Array& others, std::int64_t turns, double theta,
                 const Array& cos, const Array& sin);

/// Heads of 2 * cos.columns channels, at most 256.
void head_norm_rotary(Stream stream, const Array& qkv, const Array& q_norm, const Array& k_norm,
                      const Array& cos, const Array& sin, const Array& q, const Array& k, const Array& rstd,
                      double eps);

/// Chunks of so many heads of all rows, each of which makes a sum for the gradient of a norm's weights. More
/// than of rows: they are read here, and enough must be on their way at a time.
inline std::int64_t head_chunks(std::int64_t heads) {
    const std::int64_t chunks = (heads + 63) / 64;
    return chunks < 512 ? chunks : 512;
}
/// Rows of D sums that the gradient of a norm's weights takes as scratch.
inline std::int64_t head_sums(std::int64_t heads) {
    return head_chunks(heads) + row_chunks(head_chunks(heads));
}
/// q_partial [head_sums(T * H), D] and k_partial [head_sums(T * K), D], of the accumulation type, where
/// dq_norm and dk_norm are not absent.
void head_norm_rotary_backward(Stream stream, const Array& dq, const Array& dk, const Array& qkv,
                               const Array& q_norm, const Array& k_norm, const Array& cos, const Array& sin,
                               const Array& rstd, const Array& dqkv, const Array& dq_norm,
                               const Array& dk_norm, const Array& q_partial, const Array& k_partial);

}  // namespace maestro::kernels
