// Element-wise reduction of several tensors, such as the parts of a sum that ranks have worked out.
#pragma once

#include <span>

#include "backend/backend.hpp"

namespace maestro::ops {

enum class Reduction { sum, max };

/// result[i] = parts[0][i] + parts[1][i] + ... in this order, or their maximum, in the parts' arithmetic type
/// and rounded once; a maximum with NaN is NaN. All of one type and size; the result may be one of the parts.
/// At least one part; on a GPU at most kernels::kMostParts.
void reduce(backend::Backend& b, std::span<const Tensor> parts, Reduction how, const Tensor& result);

}  // namespace maestro::ops
