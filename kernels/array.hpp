// The view of a Tensor that kernels take. It is a plain struct, because nvcc compiles it. Owns nothing.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace maestro::kernels {

/// Contiguous [rows, columns]. An absent tensor has 0 columns.
struct Array {
    void* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t rows = 0, columns = 0;

    Array() = default;
    /// Converts from any class with the interface of Tensor.
    template <class Tensor>
    Array(const Tensor& tensor)
        : data(tensor.data), dtype(tensor.dtype), rows(tensor.rows()), columns(tensor.columns()) {}

    std::int64_t size() const { return rows * columns; }
    bool absent() const { return columns == 0; }
    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
};

}  // namespace maestro::kernels
