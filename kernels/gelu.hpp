// GPU implementation of ops/gelu.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// The exact form, or the tanh approximation.
void gelu(Stream stream, const Array& x, const Array& y, bool exact);
void gelu_backward(Stream stream, const Array& dy, const Array& x, const Array& dx, bool exact);

}  // namespace maestro::kernels
