// Statistics of packed sequences, for attention that takes each padded to the same number of rows.
#pragma once

#include <cstdint>

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// lse[T, H], f32 -> padded[S, H, longest]: row t is row places[t] (i32) of S * longest. Other rows stay.
void pad_statistics(Stream stream, const Array& lse, const Array& places, std::int64_t longest,
                    const Array& padded);

}  // namespace maestro::kernels
