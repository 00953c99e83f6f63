#include "ops/low_rank.hpp"

#include <cstddef>

#include "base/check.hpp"

namespace maestro::ops {

namespace {

/// The address of a view's first element.
void* begin_of(const ColumnView& view, std::int64_t columns) {
    MAESTRO_CHECK(view.rows.rank == 0 && view.column >= 0 && view.column + columns <= view.tensor.columns(),
                  "columns {} to {} of {}", view.column, view.column + columns, view.tensor.describe());
    return static_cast<std::byte*>(view.tensor.data) +
           static_cast<std::size_t>(view.column) * size_of(view.tensor.dtype);
}

}  // namespace

void low_rank_inner(backend::Backend& b, const Tensor& x, const Tensor& a, double scale,
                    const Tensor& inner) {
    MAESTRO_CHECK(x.rows() == inner.rows() && a.columns() == x.columns() && a.dim(0) == inner.columns(),
                  "x {}, a {}, inner {}", x.describe(), a.describe(), inner.describe());
    if (inner.size() == 0) return;
    b.gemm({.a = x.data,
            .b = a.data,
            .y = inner.data,
            .m = inner.rows(),
            .n = inner.columns(),
            .k = x.columns(),
            .lda = x.columns(),
            .ldb = a.columns(),
            .ldy = inner.columns(),
            .transpose_a = false,
            .transpose_b = true,
            .accumulate = false,
            .in = x.dtype,
            .out = inner.dtype,
            .alpha = scale});
}

void low_rank_add(backend::Backend& b, const ColumnView& inner, const Tensor& w, const ColumnView& y) {
    MAESTRO_CHECK(inner.tensor.rows() == y.tensor.rows(), "inner {}, y {}", inner.tensor.describe(),
                  y.tensor.describe());
    if (y.tensor.size() == 0 || w.size() == 0) return;
    b.gemm({.a = begin_of(inner, w.columns()),
            .b = w.data,
            .y = begin_of(y, w.dim(0)),
            .m = y.tensor.rows(),
            .n = w.dim(0),
            .k = w.columns(),
            .lda = inner.tensor.columns(),
            .ldb = w.columns(),
            .ldy = y.tensor.columns(),
            .transpose_a = false,
            .transpose_b = true,
            .accumulate = true,
            .in = w.dtype,
            .out = y.tensor.dtype});
}

void low_rank_backward_inner(backend::Backend& b, const ColumnView& dy, const Tensor& w, double scale,
                             const ColumnView& d_inner) {
    MAESTRO_CHECK(d_inner.tensor.rows() == dy.tensor.rows(), "d_inner {}, dy {}", d_inner.tensor.describe(),
                  dy.tensor.describe());
    if (d_inner.tensor.size() == 0) return;
    b.gemm({.a = begin_of(dy, w.dim(0)),
            .b = w.data,
            .y = begin_of(d_inner, w.columns()),
            .m = dy.tensor.rows(),
            .n = w.columns(),
            .k = w.dim(0),
            .lda = dy.tensor.columns(),
            .ldb = w.columns(),
            .ldy = d_inner.tensor.columns(),
            .transpose_a = false,
            .transpose_b = false,
            .accumulate = false,
            .in = dy.tensor.dtype,
            .out = d_inner.tensor.dtype,
            .alpha = scale});
}

void low_rank_backward_weight(backend::Backend& b, const ColumnView& dy, const ColumnView& inner,
                              const Tensor& dw) {
    MAESTRO_CHECK(inner.tensor.rows() == dy.tensor.rows(), "inner {}, dy {}", inner.tensor.describe(),
                  dy.tensor.describe());
    if (dw.size() == 0 || dy.tensor.size() == 0) return;
    b.gemm({.a = begin_of(dy, dw.dim(0)),
            .b = begin_of(inner, dw.columns()),
            .y = dw.data,
            .m = dw.dim(0),
            .n = dw.columns(),
            .k = dy.tensor.rows(),
            .lda = dy.tensor.columns(),
            .ldb = inner.tensor.columns(),
            .ldy = dw.columns(),
            .transpose_a = true,
            .transpose_b = false,
            .accumulate = true,
            .in = dy.tensor.dtype,
            .out = dw.dtype});
}

}  // namespace maestro::ops
