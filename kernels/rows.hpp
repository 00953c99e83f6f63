// GPU implementation of ops/rows.hpp and of the forward pass of ops/embedding.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// target[index[r]] = source[r]
void scatter_rows(Stream stream, const Array& source, const Array& index, const Array& target);
/// target[r] = source[index[r]], zeros where the index is negative.
void gather_rows(Stream stream, const Array& source, const Array& index, const Array& target);

}  // namespace maestro::kernels
