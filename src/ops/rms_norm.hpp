// Root-mean-square layer norm (Zhang and Sennrich, NeurIPS 2019). Shape letters: T rows, C channels.
#pragma once

#include "backend/arena.hpp"

namespace maestro::ops {

/// y[T, C] = x * rstd * w, where w[C] is the weight and rstd[t] = 1 / sqrt(mean(x[t]^2) + eps). rstd[T] has
/// the accumulation type of x[T, C] and is saved for backward.
void rms_norm(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& rstd,
              double eps);
/// dx[T, C] = the gradient of x, w * dy * rstd - x * rstd^3 * mean(w * dy * x), or dx += it with
/// `accumulate`; dw[C], of the accumulation type, += the sum over rows of dy * x * rstd. dw is absent for
/// frozen weights. dx is not dy.
void rms_norm_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& w,
                       const Tensor& rstd, const Tensor& dx, const Tensor& dw, bool accumulate,
                       backend::Arena& scratch);

}  // namespace maestro::ops
