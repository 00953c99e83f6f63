// ops/elementwise.hpp on a GPU.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

void add(Stream stream, const Array& x, const Array& y);
void convert(Stream stream, const Array& source, const Array& target);
void copy(Stream stream, const Array& source, const Array& target);
void zero(Stream stream, const Array& array);

}  // namespace maestro::kernels
