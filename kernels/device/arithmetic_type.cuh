// Dispatch for values that are stored in the type that they are computed in: logits whose arg-max is taken,
// and statistics of softmax.
#pragma once

#include <string>

#include "base/error.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// Calls body(T{}) with T = float or double.
template <class Body>
void by_arithmetic_type(DType type, Body&& body) {
    if (type == DType::f32)
        body(float{});
    else if (type == DType::f64)
        body(double{});
    else
        throw Error(ExitCode::broken_invariant, std::string("logits or statistics of ") + name_of(type));
}

}  // namespace maestro::kernels
