// Scratch that only a device with memory of its own needs.
#pragma once

#include <initializer_list>

#include "backend/arena.hpp"
#include "kernels/row_chunks.hpp"

namespace maestro::ops {

/// Uninitialized there, nothing on a device that shares the host's memory.
inline Tensor device_scratch(const backend::Backend& b, backend::Arena& scratch, DType type,
                             std::initializer_list<std::int64_t> shape) {
    if (b.shares_memory()) return {};
    return scratch.allocate(type, shape);
}

/// [chunks, columns]: for sums over rows, which a GPU takes in two goes.
inline Tensor row_partials(const backend::Backend& b, std::int64_t rows, std::int64_t columns, DType type,
                           backend::Arena& scratch) {
    return device_scratch(b, scratch, type, {kernels::row_chunks(rows), columns});
}

}  // namespace maestro::ops
