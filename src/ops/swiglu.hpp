// SwiGLU, the gated activation of the MLP (Shazeer, "GLU variants improve transformer", 2020). Shape letters:
// T rows, F hidden channels.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// y[T, F] = silu(gate) * up, where gate_up[T, 2 F] holds gate in its first F columns and up in the others.
void swiglu(backend::Backend& b, const Tensor& gate_up, const Tensor& y);
/// dgate_up[T, 2 F] = the gradient of gate_up, from dy[T, F].
void swiglu_backward(backend::Backend& b, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);

}  // namespace maestro::ops
