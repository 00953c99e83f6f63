// GPU implementation of ops/elementwise.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// y += x
void add(Stream stream, const Array& x, const Array& y);
void convert(Stream stream, const Array& source, const Array& target);
/// Copies bytes; both arrays have the same type and size.
void copy(Stream stream, const Array& source, const Array& target);
void zero(Stream stream, const Array& array);
/// Sets all elements of an f32 or f64 array to `value`.
void fill(Stream stream, const Array& array, double value);

}  // namespace maestro::kernels
