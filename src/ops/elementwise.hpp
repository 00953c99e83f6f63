// Sums, casts and fills.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// y += x; the types may differ, sums in y's arithmetic type.
void add(backend::Backend& b, const Tensor& x, const Tensor& y);
/// target = source, cast.
void convert(backend::Backend& b, const Tensor& source, const Tensor& target);
/// target = source, of one type, whichever.
void copy(backend::Backend& b, const Tensor& source, const Tensor& target);
void zero(backend::Backend& b, const Tensor& t);

}  // namespace maestro::ops
