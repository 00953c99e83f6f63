// GPU implementation of ops/expert_rows.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

void sum_rows(Stream stream, const Array& rows, const Array& position, const Array& sum, bool accumulate);
void weighted_swiglu(Stream stream, const Array& gate_up, const Array& weight, const Array& y);
void weighted_swiglu_backward(Stream stream, const Array& dy, const Array& gate_up, const Array& weight,
                              const Array& dgate_up, const Array& d_weight);

}  // namespace maestro::kernels
