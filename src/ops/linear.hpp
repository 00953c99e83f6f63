// A linear layer, y = x W^T + b, and its gradients (PyTorch's nn.Linear). Shape letters: T rows, I input
// channels, O output channels; the weight is stored as [O, I]. Error(broken_invariant) for shapes that do not
// fit.
#pragma once

#include "backend/arena.hpp"
#include "ops/gelu.hpp"

namespace maestro::ops {

/// y[T, O] = x[T, I] w[O, I]^T, plus bias[O] unless it is absent.
void linear(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& bias = {});
/// The same with a bias, and active[T, O] = GELU(y). On GPUs one GEMM computes both with the tanh form.
void linear_gelu(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                 const Tensor& active, GeluForm form);
/// y[T, O] += bias[O] in each row.
void add_bias(backend::Backend& b, const Tensor& bias, const Tensor& y);
/// y[T, O] += x[T, I] w[O, I]^T, or y = addend[T, O] + x w^T with an addend, of y's type. In bf16 the sum is
/// rounded once.
void linear_accumulate(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y,
                       const Tensor& addend = {});
/// dx[T, I] (+)= dy[T, O] w[O, I].
void linear_backward_input(backend::Backend& b, const Tensor& dy, const Tensor& w, const Tensor& dx,
                           bool accumulate);
/// dw[O, I] += dy[T, O]^T x[T, I]. dw has the accumulation type: f32 for bf16 activations.
void linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dw);
/// The same, and dbias[O], of dw's type, += the column sums of dy[T, O].
void linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias, backend::Arena& scratch);
/// dbias[O] += the column sums of dy[T, O].
void bias_backward(backend::Backend& b, const Tensor& dy, const Tensor& dbias, backend::Arena& scratch);

}  // namespace maestro::ops
