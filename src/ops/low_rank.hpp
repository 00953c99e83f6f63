// The GEMMs of a low-rank addition to a linear layer, y += scale (x A^T) B^T (LoRA, spec/lora.hpp). Shape
// letters: T rows, I input channels, O output channels of one matrix, R its rank. A view is O or R columns of
// a tensor, which has those of several matrices side by side. Error(broken_invariant) for shapes that do not
// fit.
#pragma once

#include "ops/columns.hpp"

namespace maestro::ops {

/// inner[T, *] = scale x[T, I] a[*, I]^T, for all matrices that read x at once.
void low_rank_inner(backend::Backend& b, const Tensor& x, const Tensor& a, double scale, const Tensor& inner);
/// y[T, O] += inner[T, R] w[O, R]^T.
void low_rank_add(backend::Backend& b, const ColumnView& inner, const Tensor& w, const ColumnView& y);
/// d_inner[T, R] = scale dy[T, O] w[O, R]: the gradient of x A^T.
void low_rank_backward_inner(backend::Backend& b, const ColumnView& dy, const Tensor& w, double scale,
                             const ColumnView& d_inner);
/// dw[O, R] += dy[T, O]^T inner[T, R]. dw has the accumulation type.
void low_rank_backward_weight(backend::Backend& b, const ColumnView& dy, const ColumnView& inner,
                              const Tensor& dw);

}  // namespace maestro::ops
