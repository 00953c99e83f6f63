// Scratch memory that only devices with separate memory need.
#pragma once

#include <initializer_list>

#include "backend/arena.hpp"
#include "kernels/row_chunks.hpp"

namespace maestro::ops {

/// Allocates uninitialized scratch memory; returns an absent tensor on a device that shares the host's
/// memory, whose loops keep such values in registers or on the stack.
inline Tensor device_scratch(const backend::Backend& b, backend::Arena& scratch, DType type,
                             std::initializer_list<std::int64_t> shape) {
    if (b.shares_memory()) return {};
    return scratch.allocate(type, shape);
}

/// Allocates [chunks, columns] for the partial sums of a reduction over rows, which a GPU computes in two
/// passes: within chunks of rows, then over the chunks.
inline Tensor row_partials(const backend::Backend& b, std::int64_t rows, std::int64_t columns, DType type,
                           backend::Arena& scratch) {
    return device_scratch(b, scratch, type, {kernels::row_chunks(rows), columns});
}

}  // namespace maestro::ops
