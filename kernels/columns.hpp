// GPU implementation of ops/columns.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// Columns of a tensor from `column` on. rows (i32): the rows to use, or absent for all rows.
struct Columns {
    Array tensor;
    std::int64_t column = 0;
    Array rows;
};

/// Copies `count` columns of `rows` rows, converting the type. Adds to the target where `accumulate`.
void copy_columns(Stream stream, const Columns& source, const Columns& target, std::int64_t rows,
                  std::int64_t count, bool accumulate);

}  // namespace maestro::kernels
