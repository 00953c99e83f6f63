// Layer norm (Ba, Kiros and Hinton, 2016; PyTorch's nn.LayerNorm over the last dimension). Shape letters: T
// rows, C channels.
#pragma once

#include "backend/arena.hpp"

namespace maestro::ops {

/// y[T, C] = (x - mean) * rstd * w + bias, where w[C] is the weight, mean[t] the mean of the row x[t] and
/// rstd[t] = 1 / sqrt(variance + eps) with the biased variance of the row, mean((x[t] - mean[t])^2). It is
/// computed from the differences, and so does not suffer where a row's mean is much larger than its standard
/// deviation. mean[T] and rstd[T] have the accumulation type of x[T, C] and are saved for backward. y may be
/// x.
void layer_norm(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                const Tensor& mean, const Tensor& rstd, double eps);
/// dx[T, C] = the gradient of x, rstd * (g - mean(g) - n * mean(g * n)) with g = w * dy and the normalized
/// rows n = (x - mean) * rstd, or dx += it with `accumulate`. dw[C] += the sum over rows of dy * n, and
/// dbias[C] += that of dy; both have the accumulation type, and both are absent for frozen weights. dx may be
/// dy.
void layer_norm_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& w,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx, const Tensor& dw,
                         const Tensor& dbias, bool accumulate, backend::Arena& scratch);

}  // namespace maestro::ops
