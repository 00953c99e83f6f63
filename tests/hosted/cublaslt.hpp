// The stand-in for cuBLASLt: what tests may ask of it.
#pragma once

#include <cstdint>

namespace hosted {

/// Of the three algorithms that it proposes for a product, the one that does not dawdle.
inline constexpr int kFastProposal = 1;

/// Products of this process so far, by the algorithm's place among the proposals.
std::int64_t products_by(int proposal);

}  // namespace hosted
