// GPU implementation of ops/position_table.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/radix_sort.hpp"

namespace maestro::kernels {

void position_embedding(Stream stream, const Array& index, const Array& weight, const Array& table,
                        const Array& x);

/// Elements (i32) that position_embedding_backward() takes as scratch for `indices` into a table.
inline std::int64_t position_embedding_scratch(std::int64_t indices, std::int64_t table_rows) {
    return RadixSort(indices, table_rows).scratch();
}

/// Sorts the indices, so that a row of the table is summed in the order of its indices, as by a loop over
/// them. scratch: i32[position_embedding_scratch(4 * rows of dy, rows of dtable)].
void position_embedding_backward(Stream stream, const Array& index, const Array& weight, const Array& dy,
                                 const Array& dtable, const Array& scratch);

}  // namespace maestro::kernels
