// GPU implementation of join_attention() in ops/attention/attention.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

void join_attention(Stream stream, const Array& other_out, const Array& other_lse, const Array& out,
                    const Array& lse);

}  // namespace maestro::kernels
