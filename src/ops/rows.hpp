// Copies whole rows to and from given places.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.hpp"

namespace maestro::ops {

/// target[index[r]] = source[r]; index within the target's rows (checked).
void scatter_rows(backend::Backend& b, const Tensor& source, std::span<const std::int32_t> index,
                  const Tensor& target);
/// target[r] = source[index[r]].
void gather_rows(backend::Backend& b, const Tensor& source, std::span<const std::int32_t> index,
                 const Tensor& target);

}  // namespace maestro::ops
