// GPU implementation of ops/swiglu.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

void swiglu(Stream stream, const Array& gate_up, const Array& y);
void swiglu_backward(Stream stream, const Array& dy, const Array& gate_up, const Array& dgate_up);

}  // namespace maestro::kernels
