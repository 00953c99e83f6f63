// The backward pass of ops/embedding.hpp on a GPU. The forward pass is gather_rows().
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/radix_sort.hpp"

namespace maestro::kernels {

/// Elements (i32) that embedding_backward() takes as scratch for `rows` ids below `vocabulary`.
inline std::int64_t embedding_scratch(std::int64_t rows, std::int64_t vocabulary) {
    return RadixSort(rows, vocabulary).scratch();
}

/// dtable[ids[t]] += dy[t], in the order of t for every id, so that the sums are bit for bit those of a loop
/// over the rows. Rows with a negative id are skipped. Sorts the rows by id first, which takes time linear in
/// the rows. scratch: i32[embedding_scratch(rows of dy, rows of dtable)].
void embedding_backward(Stream stream, const Array& ids, const Array& dy, const Array& dtable,
                        const Array& scratch);

}  // namespace maestro::kernels
