#include "model/logit_chunk.hpp"

#include <algorithm>

#include "ops/dispatch.hpp"

namespace maestro::model {

LogitChunk logit_chunk(bool shares_memory, DType compute, bool train, std::int64_t tokens,
                       std::int64_t models) {
    const DType wide = ops::accumulate_type(compute);
    // On a CPU few rows suffice for GEMMs at full rate.
    if (shares_memory) return {wide, 256};
    // On a GPU each chunk reads the whole weight of the head, and reads and writes its gradient: with fewer
    // rows memory would bound these GEMMs. An evaluation takes the arg-max, for which logits remain fp32:
    // rounded to bf16, several are often equal.
    constexpr std::int64_t kLeast = 1024, kMost = 4096, kTile = 128, kBytes = std::int64_t{1} << 30;
    if (compute == wide || !train) return {wide, kLeast};
    // The loss computes in fp32 and replaces bf16 logits by the gradient that the GEMMs of backward read.
    const auto row_bytes = models * tokens * static_cast<std::int64_t>(size_of(compute));
    return {compute, std::clamp(kBytes / row_bytes / kTile * kTile, kLeast, kMost)};
}

}  // namespace maestro::model
