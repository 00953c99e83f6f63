// ops/reduce.hpp on a GPU.
#pragma once

#include <cstddef>
#include <span>

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// Whose addresses a launch can pass: the parameters of a kernel take up to 32,764 bytes.
inline constexpr std::size_t kMostParts = 4000;

/// result = the sum of the parts in their order, or their maximum. Of each part its address counts alone; all
/// are of the result's type and size.
void reduce(Stream stream, std::span<const void* const> parts, bool sum, const Array& result);

}  // namespace maestro::kernels
