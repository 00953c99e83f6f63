// Room for sums over rows, which a GPU takes in two goes.
#pragma once

#include "backend/arena.hpp"
#include "kernels/row_chunks.hpp"

namespace maestro::ops {

/// [chunks, columns] where the device needs it, else nothing.
inline Tensor row_partials(const backend::Backend& b, std::int64_t rows, std::int64_t columns, DType type,
                           backend::Arena& scratch) {
    if (b.shares_memory()) return {};
    return scratch.allocate(type, {kernels::row_chunks(rows), columns});
}

}  // namespace maestro::ops
