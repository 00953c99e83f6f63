#include "ops/rows.hpp"

#include <cstring>

#include "kernels/rows.hpp"

namespace maestro::ops {

namespace {

/// Copies between row r of `few` and row index[r] of `many`. `few` is empty for a sample without pictures.
void copy(backend::Backend& b, const Tensor& few, const Tensor& index, const Tensor& many, bool scatter) {
    MAESTRO_CHECK(few.dtype == many.dtype && (few.columns() == many.columns() || few.size() == 0) &&
                      few.rows() <= index.size() && (few.size() == 0 || few.rows() == index.size()),
                  "{} rows by index between {} and {}", index.size(), few.describe(), many.describe());
    b.launch(
        {0, 2.0 * static_cast<double>(few.bytes())},
        [&] {
            const std::size_t row = static_cast<std::size_t>(many.columns()) * size_of(many.dtype);
            const std::int32_t* at = index.as<std::int32_t>();
            for (std::int64_t r = 0; r < few.rows(); ++r) {
                MAESTRO_CHECK(at[r] >= 0 && at[r] < many.rows(), "row {} of {}", at[r], many.describe());
                auto* one = static_cast<std::byte*>(few.data) + static_cast<std::size_t>(r) * row;
                auto* other = static_cast<std::byte*>(many.data) + static_cast<std::size_t>(at[r]) * row;
                if (scatter)
                    std::memcpy(other, one, row);
                else
                    std::memcpy(one, other, row);
            }
        },
        [&](Stream stream) {
            if (scatter)
                kernels::scatter_rows(stream, few, index, many);
            else
                kernels::gather_rows(stream, many, index, few);
        });
}

}  // namespace

void scatter_rows(backend::Backend& b, const Tensor& source, const Tensor& index, const Tensor& target) {
    copy(b, source, index, target, true);
}

void gather_rows(backend::Backend& b, const Tensor& source, const Tensor& index, const Tensor& target) {
    copy(b, target, index, source, false);
}

}  // namespace maestro::ops
