// ops/columns.hpp on a GPU.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// Rows of a tensor from a column on; places: which ones, i32, absent: all.
struct Columns {
    Array tensor;
    std::int64_t column = 0;
    Array places;
};

void copy_columns(Stream stream, const Columns& source, const Columns& target, std::int64_t rows,
                  std::int64_t count, bool accumulate);

}  // namespace maestro::kernels
