// Element-wise reduction of several tensors, as of the partial sums of several ranks.
#pragma once

#include <span>

#include "backend/backend.hpp"

namespace maestro::ops {

enum class Reduction { sum, max };

/// result[i] = parts[0][i] + parts[1][i] + ..., or their maximum. Sums are taken in this order in the
/// accumulation type and rounded once, so that they have the same bits on every rank. A maximum over NaN is
/// NaN. All tensors have the same type and size, and the result may be one of the parts. There is at least
/// one part, and on a GPU at most kernels::kMaxParts; Error(broken_invariant) otherwise.
void reduce(backend::Backend& b, std::span<const Tensor> parts, Reduction op, const Tensor& result);

}  // namespace maestro::ops
