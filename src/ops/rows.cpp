#include "ops/rows.hpp"

#include <cstring>

#include "kernels/rows.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

/// Copies between row r of `dense` and row index[r] of `indexed`, to the latter with `scatter`. A sample
/// without pictures has an empty `dense` without columns.
void copy(backend::Backend& b, const Tensor& dense, const Tensor& index, const Tensor& indexed,
          bool scatter) {
    MAESTRO_CHECK(dense.dtype == indexed.dtype &&
                      (dense.columns() == indexed.columns() || dense.size() == 0) &&
                      dense.rows() <= index.size() && (dense.size() == 0 || dense.rows() == index.size()),
                  "{} indices for rows of {} and {}", index.size(), dense.describe(), indexed.describe());
    b.launch(
        {0, 2.0 * static_cast<double>(dense.bytes())},
        [&] {
            const std::size_t row = static_cast<std::size_t>(indexed.columns()) * size_of(indexed.dtype);
            const std::int32_t* at = index.as<std::int32_t>();
            for (std::int64_t r = 0; r < dense.rows(); ++r)
                MAESTRO_CHECK(at[r] >= 0 && at[r] < indexed.rows(), "row {} of {}", at[r],
                              indexed.describe());
            parallel_for(dense.rows(), indexed.columns(), [&](std::int64_t r) {
                auto* one = static_cast<std::byte*>(dense.data) + static_cast<std::size_t>(r) * row;
                auto* other = static_cast<std::byte*>(indexed.data) + static_cast<std::size_t>(at[r]) * row;
                if (scatter)
                    std::memcpy(other, one, row);
                else
                    std::memcpy(one, other, row);
            });
        },
        [&](Stream stream) {
            if (scatter)
                kernels::scatter_rows(stream, dense, index, indexed);
            else
                kernels::gather_rows(stream, indexed, index, dense);
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
