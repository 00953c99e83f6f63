// GPU implementation of ops/rms_norm.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/row_chunks.hpp"

namespace maestro::kernels {

void rms_norm(Stream stream, const Array& x, const Array& w, const Array& y, const Array& rstd, double eps);
/// partial: scratch [fused_row_chunks(rows), columns] of the accumulation type, unused where dw is absent.
void rms_norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Array& rstd,
                       const Array& dx, const Array& dw, bool accumulate, const Array& partial);

}  // namespace maestro::kernels
