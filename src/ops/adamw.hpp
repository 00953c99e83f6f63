// One AdamW update (Loshchilov and Hutter, ICLR 2019) and the norm that clipping needs.
#pragma once

#include <cstdint>

#include "backend/arena.hpp"

namespace maestro::ops {

struct AdamW {
    double learning_rate;
    double beta1, beta2;
    double eps;
    double weight_decay;    ///< decoupled: weights lose learning_rate * weight_decay of themselves
    std::int64_t step;      ///< from 1, for the bias correction
    double gradient_scale;  ///< of clipping
};

/// All f32[n].
void adamw(backend::Backend& b, const Tensor& weights, const Tensor& gradient, const Tensor& first,
           const Tensor& second, const AdamW& settings);
/// sum[1] (f64) += the sum of squares, the same whatever the number of threads. Scratch: up to 32 KiB on a
/// GPU.
void add_squares(backend::Backend& b, const Tensor& t, const Tensor& sum, backend::Arena& scratch);

}  // namespace maestro::ops
