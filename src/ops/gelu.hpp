// GELU in its tanh form (Hendrycks and Gimpel, 2016).
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

void gelu(backend::Backend& b, const Tensor& x, const Tensor& y);
void gelu_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dx);

}  // namespace maestro::ops
