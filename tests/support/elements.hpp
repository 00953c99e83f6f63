// Access to single elements of tensors in host memory, as doubles whatever their type.
#pragma once

#include "base/tensor.hpp"

namespace maestro::testing_support {

inline void set_element(const Tensor& t, std::int64_t i, double value) {
    if (t.dtype == DType::f64)
        t.as<double>()[i] = value;
    else if (t.dtype == DType::f32)
        t.as<float>()[i] = static_cast<float>(value);
    else
        t.as<bf16>()[i] = bf16(static_cast<float>(value));
}

inline double element_of(const Tensor& t, std::int64_t i) {
    if (t.dtype == DType::f64) return t.as<double>()[i];
    if (t.dtype == DType::f32) return static_cast<double>(t.as<float>()[i]);
    return static_cast<double>(static_cast<float>(t.as<bf16>()[i]));
}

}  // namespace maestro::testing_support
