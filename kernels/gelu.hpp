// GPU implementation of ops/gelu.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

void gelu(Stream stream, const Array& x, const Array& y);
void gelu_backward(Stream stream, const Array& dy, const Array& x, const Array& dx);

}  // namespace maestro::kernels
