// Root-mean-square layer norm (Zhang and Sennrich, NeurIPS 2019). T rows, C channels.
#pragma once

#include "backend/arena.hpp"

namespace maestro::ops {

/// y = x * rstd * w with rstd[t] = 1 / sqrt(mean(x[t]^2) + eps); rstd[T] has the accumulation type.
void rms_norm(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& rstd,
              double eps);
/// dx (+)= ..., dw += ...; dw may be empty (frozen weights).
void rms_norm_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& w,
                       const Tensor& rstd, const Tensor& dx, const Tensor& dw, bool accumulate,
                       backend::Arena& scratch);

}  // namespace maestro::ops
