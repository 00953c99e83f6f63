#include "base/tensor.hpp"

#include <fmt/format.h>

namespace maestro {

Tensor::Tensor(void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_)
    : data(data_), dtype(dtype_), rank(static_cast<int>(shape_.size())) {
    MAESTRO_CHECK(shape_.size() <= shape.size(), "at most {} dimensions", shape.size());
    std::size_t i = 0;
    for (auto extent : shape_) {
        MAESTRO_CHECK(extent >= 0, "a dimension of {}", extent);
        shape[i++] = extent;
    }
}

std::int64_t Tensor::size() const {
    if (rank == 0) return 0;
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t end) const {
    MAESTRO_CHECK(rank > 0 && begin >= 0 && begin <= end && end <= dim(0), "rows {}..{} of {}", begin, end,
                  describe());
    Tensor part = *this;
    const std::int64_t row = dim(0) == 0 ? 0 : size() / dim(0);
    part.shape[0] = end - begin;
    part.data = static_cast<std::byte*>(data) + static_cast<std::size_t>(begin * row) * size_of(dtype);
    return part;
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> shape_) const {
    Tensor other(data, dtype, shape_);
    MAESTRO_CHECK(other.size() == size(), "cannot reshape {} to {}", describe(), other.describe());
    return other;
}

std::string Tensor::describe() const {
    return fmt::format("{}[{}]", name_of(dtype), fmt::join(shape.begin(), shape.begin() + rank, ", "));
}

}  // namespace maestro
