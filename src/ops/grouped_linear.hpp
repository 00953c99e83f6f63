// Linear layers of several experts at once (grouped GEMM, as MegaBlocks: Gale et al., MLSys 2023). The rows
// of an expert lie one after another: expert e has the rows [begin[e], begin[e + 1]) of x and y, possibly
// none, and the rows [e O, (e + 1) O) of the weight. Shape letters: E experts, N rows in all, I input
// channels, O output channels. Types as in linear.hpp. Error(broken_invariant) for shapes that do not fit.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.hpp"

namespace maestro::ops {

/// y[N, O] = x[N, I] w[E O, I]^T, each row with the weight of its expert. `begin`: E + 1 numbers that ascend
/// from 0 to N, in host memory.
void grouped_linear(backend::Backend& b, const Tensor& x, const Tensor& w,
                    std::span<const std::int64_t> begin, const Tensor& y);
/// dx[N, I] = dy[N, O] w[E O, I].
void grouped_linear_backward_input(backend::Backend& b, const Tensor& dy, const Tensor& w,
                                   std::span<const std::int64_t> begin, const Tensor& dx);
/// dw[E O, I] += dy[N, O]^T x[N, I] by expert. dw has the accumulation type.
void grouped_linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x,
                                    std::span<const std::int64_t> begin, const Tensor& dw);

}  // namespace maestro::ops
