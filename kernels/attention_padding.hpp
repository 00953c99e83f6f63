// Softmax statistics of packed sequences in the padded layout that cuDNN's backward needs on some GPUs.
#pragma once

#include <cstdint>

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// Copies lse[T, H] (f32) to padded[S, H, max_seqlen]. Token t becomes row rows[t] (i32) of the S *
/// max_seqlen padded rows. Other elements of `padded` are left as they are.
void pad_statistics(Stream stream, const Array& lse, const Array& rows, std::int64_t max_seqlen,
                    const Array& padded);

}  // namespace maestro::kernels
