// GPU implementation of ops/layer_norm.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/row_chunks.hpp"

namespace maestro::kernels {

void layer_norm(Stream stream, const Array& x, const Array& w, const Array& bias, const Array& y,
                const Array& mean, const Array& rstd, double eps);
/// partial: scratch [2 * fused_row_chunks(rows), columns] of the accumulation type, unused where dw is
/// absent.
void layer_norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Array& mean,
                         const Array& rstd, const Array& dx, const Array& dw, const Array& dbias,
                         bool accumulate, const Array& partial);

}  // namespace maestro::kernels
