// GPU implementation of ops/router.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

inline constexpr double kRouterEpsilon = 1e-20;  ///< added to the sum that weights are divided by

/// sigmoid: the scores are sigmoids and not softmax. normalize: the weights are divided by their sum.
void route(Stream stream, const Array& logits, const Array& bias, bool sigmoid, bool normalize,
           const Array& scores, const Array& choice, const Array& weight);
void route_backward(Stream stream, const Array& d_weight, const Array& scores, const Array& choice,
                    bool sigmoid, bool normalize, const Array& d_logits);
/// losses[rows] (f64): of each row; absent: not wanted.
void balance_backward(Stream stream, const Array& scores, const Array& group, const Array& chosen,
                      const Array& factor, bool sigmoid, const Array& d_logits, const Array& losses);

}  // namespace maestro::kernels
