// The tiles of the attention kernels: which queries and keys each thread block works on. Computed on the
// host, which knows the mask.
#pragma once

#include "base/tensor.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/upload.hpp"

namespace maestro::ops {

/// Lists in the form of kernels/attention.hpp.
struct AttentionTiles {
    Tensor queries, keys;  ///< tiles over the queries and, in backward, over the keys
    Tensor kv_limit;       ///< VarlenMask::kv_limit
};

/// Computes the tiles and copies them to the device by one call of `upload`. `type` is that of the queries.
AttentionTiles attention_tiles(const VarlenMask& mask, DType type, bool backward, const Upload& upload);

}  // namespace maestro::ops
