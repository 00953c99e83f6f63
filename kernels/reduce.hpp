// GPU implementation of ops/reduce.hpp.
#pragma once

#include <cstddef>
#include <span>

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// A launch passes the parts' addresses as kernel parameters, which take at most 32,764 bytes.
inline constexpr std::size_t kMaxParts = 4000;

/// result = the sum of the parts, added in their order, or their elementwise maximum. The parts are addresses
/// in device memory of arrays of the result's type and size.
void reduce(Stream stream, std::span<const void* const> parts, bool sum, const Array& result);

}  // namespace maestro::kernels
