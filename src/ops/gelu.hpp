// GELU, x * Phi(x) with the cumulative distribution function Phi of the standard normal distribution
// (Hendrycks and Gimpel, "Gaussian error linear units", 2016). All tensors have the same size and type.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// PyTorch's gelu(approximate="tanh") and gelu(approximate="none"). They differ by up to 5e-4.
enum class GeluForm { tanh, exact };

/// y = GELU(x).
void gelu(backend::Backend& b, const Tensor& x, const Tensor& y, GeluForm form);
/// dx = dy * GELU'(x). Overwrites dx, which may be dy.
void gelu_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dx, GeluForm form);

}  // namespace maestro::ops
