// The backward of ops/embedding.hpp on a GPU; its lookup is gather_rows.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// order: scratch, an i32 for each id.
void embedding_backward(Stream stream, const Array& ids, const Array& dy, const Array& dtable,
                        const Array& order);

}  // namespace maestro::kernels
