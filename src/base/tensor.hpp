// Tensor: a view of a dense row-major array. It does not own its memory; Buffer and Arena (backend/) do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.hpp"
#include "base/dtype.hpp"

namespace maestro {

struct Tensor {
    void* data = nullptr;
    DType dtype = DType::f32;
    int rank = 0;
    std::array<std::int64_t, 4> shape{};

    Tensor() = default;
    Tensor(void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_);

    std::int64_t size() const;  ///< elements
    std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
    std::int64_t dim(int i) const { return shape[i]; }
    /// All dimensions but the last as one: rows() x columns() == size().
    std::int64_t rows() const { return rank == 0 ? 0 : (columns() == 0 ? 0 : size() / columns()); }
    std::int64_t columns() const { return rank == 0 ? 0 : dim(rank - 1); }
    bool empty() const { return size() == 0; }

    /// Rows [begin, end) of the first dimension, sharing the memory.
    Tensor slice(std::int64_t begin, std::int64_t end) const;
    Tensor reshape(std::initializer_list<std::int64_t> shape_) const;

    /// The elements as T; T must match dtype (checked).
    template <class T>
    T* as() const {
        MAESTRO_CHECK(dtype == dtype_of<T>(), "tensor holds {}, not {}", name_of(dtype),
                      name_of(dtype_of<T>()));
        return static_cast<T*>(data);
    }
    std::string describe() const;  ///< "f32[12, 64]"
};

}  // namespace maestro
