// GELU in its tanh approximation (Hendrycks and Gimpel, "Gaussian error linear units", 2016; PyTorch's
// gelu(approximate="tanh")). All tensors have the same size and type.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// y = GELU(x).
void gelu(backend::Backend& b, const Tensor& x, const Tensor& y);
/// dx = dy * GELU'(x). Overwrites dx, which may be dy.
void gelu_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dx);

}  // namespace maestro::ops
