// Copies blocks of rows and columns between tensors.
#pragma once

#include <cstdint>

#include "backend/backend.hpp"

namespace maestro::ops {

/// Some rows of a tensor [rows, columns], from a column on.
struct ColumnView {
    Tensor tensor;
    std::int64_t column = 0;
    Tensor rows = {};  ///< their places, i32; none: all
};

/// `count` columns of target's rows (+)= those of source's rows, of which there are as many; cast where the
/// types differ, sums in the target's arithmetic type. Target rows are all different.
void copy_columns(backend::Backend& b, const ColumnView& source, const ColumnView& target, std::int64_t count,
                  bool accumulate = false);

}  // namespace maestro::ops
