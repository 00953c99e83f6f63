// Copies whole rows to and from given places.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// target[index[r]] = source[r], index[n] of i32 within the target's rows (checked on the CPU), all
/// different.
void scatter_rows(backend::Backend& b, const Tensor& source, const Tensor& index, const Tensor& target);
/// target[r] = source[index[r]].
void gather_rows(backend::Backend& b, const Tensor& source, const Tensor& index, const Tensor& target);

}  // namespace maestro::ops
