// Bias kernels of ops/linear.hpp. GEMMs are the backend's.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

void add_bias(Stream stream, const Array& bias, const Array& y);
/// dbias += the sum of dy over rows. partial: scratch [row_chunks(rows), columns] of the accumulation type.
void bias_backward(Stream stream, const Array& dy, const Array& dbias, const Array& partial);

}  // namespace maestro::kernels
