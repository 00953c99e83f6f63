// Element-wise sums, casts, copies and fills. Tensors have equal sizes; Error(broken_invariant) otherwise.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// y += x. The types may differ; the sum is taken in y's accumulation type and rounded once.
void add(backend::Backend& b, const Tensor& x, const Tensor& y);
/// target = source, cast to target's type.
void convert(backend::Backend& b, const Tensor& source, const Tensor& target);
/// target = source, byte for byte. Both have the same type, which may be any.
void copy(backend::Backend& b, const Tensor& source, const Tensor& target);
/// t = 0.
void zero(backend::Backend& b, const Tensor& t);

}  // namespace maestro::ops
