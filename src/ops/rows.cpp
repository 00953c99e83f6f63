#include "ops/rows.hpp"

#include <cstring>

namespace maestro::ops {

namespace {

/// Copies between row r of `few` and row index[r] of `many`. `few` is empty for a sample without pictures.
void copy(backend::Backend& b, const Tensor& few, std::span<const std::int32_t> index, const Tensor& many,
          bool scatter) {
    MAESTRO_CHECK(few.dtype == many.dtype && (few.columns() == many.columns() || few.size() == 0) &&
                      static_cast<std::size_t>(few.rows()) <= index.size() &&
                      (few.size() == 0 || static_cast<std::size_t>(few.rows()) == index.size()),
                  "{} rows by index between {} and {}", index.size(), few.describe(), many.describe());
    b.launch({0, 2.0 * static_cast<double>(few.bytes())}, [&] {
        const std::size_t row = static_cast<std::size_t>(many.columns()) * size_of(many.dtype);
        for (std::size_t r = 0; r < static_cast<std::size_t>(few.rows()); ++r) {
            MAESTRO_CHECK(index[r] >= 0 && index[r] < many.rows(), "row {} of {}", index[r], many.describe());
            auto* one = static_cast<std::byte*>(few.data) + r * row;
            auto* other = static_cast<std::byte*>(many.data) + static_cast<std::size_t>(index[r]) * row;
            if (scatter)
                std::memcpy(other, one, row);
            else
                std::memcpy(one, other, row);
        }
    });
}

}  // namespace

void scatter_rows(backend::Backend& b, const Tensor& source, std::span<const std::int32_t> index,
                  const Tensor& target) {
    copy(b, source, index, target, true);
}

void gather_rows(backend::Backend& b, const Tensor& source, std::span<const std::int32_t> index,
                 const Tensor& target) {
    copy(b, target, index, source, false);
}

}  // namespace maestro::ops
