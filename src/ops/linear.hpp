// y = x W^T + b, and its gradients. T rows, I inputs, O outputs; W is stored [O, I].
#pragma once

#include "backend/arena.hpp"

namespace maestro::ops {

/// y[T,O] = x[T,I] w[O,I]^T (+ bias[O] unless empty).
void linear(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& bias = {});
/// The same with a bias, and active = GELU of y.
void linear_gelu(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                 const Tensor& active);
/// Each row of y[T,O] += bias[O].
void add_bias(backend::Backend& b, const Tensor& bias, const Tensor& y);
/// y += x w^T.
void linear_accumulate(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y);
/// dx[T,I] (+)= dy[T,O] w[O,I].
void linear_backward_input(backend::Backend& b, const Tensor& dy, const Tensor& w, const Tensor& dx,
                           bool accumulate);
/// dw[O,I] += dy[T,O]^T x[T,I]; dw is f32 for bf16 activations.
void linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dw);
/// The same, and dbias[O] (dw's type) += column sums of dy.
void linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias, backend::Arena& scratch);
/// dbias[O] += column sums of dy[T,O].
void bias_backward(backend::Backend& b, const Tensor& dy, const Tensor& dbias, backend::Arena& scratch);

}  // namespace maestro::ops
