// What a GPU's blocks of attention take, worked out on the host, which knows what every query sees.
#pragma once

#include "backend/arena.hpp"
#include "ops/attention/attention.hpp"

namespace maestro::ops {

/// As kernels/attention.hpp has them; in an arena where the device needs them, else absent.
struct AttentionTiles {
    Tensor queries, keys, kv_limit;
};

/// `type`: of the queries. `backward`: keys too.
AttentionTiles attention_tiles(backend::Backend& b, const VarlenMask& mask, DType type, bool backward,
                               backend::Arena& scratch);

}  // namespace maestro::ops
