// Copies rows of selected columns between tensors.
#pragma once

#include <cstdint>

#include "backend/backend.hpp"

namespace maestro::ops {

/// The rows of a tensor, from a column on.
struct ColumnView {
    Tensor tensor;            ///< [rows, columns]
    std::int64_t column = 0;  ///< the first column
    Tensor rows = {};         ///< i32[n]: which rows, in this order; absent: all of them
};

/// target[r, 0..count) (+)= source[r, 0..count) for the rows r of the two views, which must have equally
/// many. Types may differ; sums are taken in the target's accumulation type. No row of the target may occur
/// twice. Throws Error(broken_invariant) for columns or, on the CPU, rows outside of the tensors.
void copy_columns(backend::Backend& b, const ColumnView& source, const ColumnView& target, std::int64_t count,
                  bool accumulate = false);

}  // namespace maestro::ops
