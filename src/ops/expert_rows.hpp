// Operations on the rows that are sent to experts. A row of the model is sent to several experts and comes
// back once from each. Shape letters: R rows of the model, k the experts of each, N rows sent to experts, F
// hidden channels, C columns. `A`: the accumulation type (ops::accumulate_type). Error(broken_invariant) for
// shapes and types that do not fit.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// sum[R, C] (+)= for each row r the rows[position[r, j]] of rows[N, C], added in the order of j in A and
/// rounded once. position[R, k] is i32; a negative one stands for no row. With `accumulate` the sum is added
/// to what sum[r] holds. rows and sum have the same type. On the CPU throws Error(broken_invariant) for a
/// position beyond N.
void sum_rows(backend::Backend& b, const Tensor& rows, const Tensor& position, const Tensor& sum,
              bool accumulate);

/// y[N, F] = weight[n] * silu(gate) * up, where gate_up[N, 2 F] holds gate in its first F columns and up in
/// the others, and weight[N] (A) is that of each row's expert.
void weighted_swiglu(backend::Backend& b, const Tensor& gate_up, const Tensor& weight, const Tensor& y);
/// dgate_up[N, 2 F] and d_weight[N] (A) = the gradients from dy[N, F]. The sum over F of d_weight is taken in
/// A, in an order that depends on F alone.
void weighted_swiglu_backward(backend::Backend& b, const Tensor& dy, const Tensor& gate_up,
                              const Tensor& weight, const Tensor& dgate_up, const Tensor& d_weight);

}  // namespace maestro::ops
