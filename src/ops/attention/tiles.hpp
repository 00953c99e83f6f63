// The tiles of the attention kernels: which queries and keys each thread block works on. Computed on the
// host, which knows the mask.
#pragma once

#include "backend/arena.hpp"
#include "ops/attention/attention.hpp"

namespace maestro::ops {

/// Lists in the form of kernels/attention.hpp. Absent on a device that shares the host's memory.
struct AttentionTiles {
    Tensor queries, keys;  ///< tiles over the queries and, in backward, over the keys
    Tensor kv_limit;       ///< VarlenMask::kv_limit
};

/// Computes the tiles and copies them to the device. `type` is that of the queries.
AttentionTiles attention_tiles(backend::Backend& b, const VarlenMask& mask, DType type, bool backward,
                               backend::Arena& scratch);

}  // namespace maestro::ops
