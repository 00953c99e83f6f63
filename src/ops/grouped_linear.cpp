#include "ops/grouped_linear.hpp"

#include <algorithm>

#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

using Form = backend::Backend::GroupedGemm::Form;

/// x[N, I] and y[N, O] are the rows, w[E O, I] the weights, or their gradients.
void check(const Tensor& x, const Tensor& w, const Tensor& y, std::span<const std::int64_t> begin) {
    MAESTRO_CHECK(!begin.empty() && begin.front() == 0 && std::is_sorted(begin.begin(), begin.end()),
                  "{} offsets, not ascending from 0", begin.size());
    const std::int64_t rows = begin.back(), experts = static_cast<std::int64_t>(begin.size()) - 1;
    MAESTRO_CHECK(x.size() == rows * x.columns() && y.size() == rows * y.columns(), "{} rows, x {}, y {}",
                  rows, x.describe(), y.describe());
    MAESTRO_CHECK(w.rank == 2 && w.columns() == x.columns() && w.dim(0) == experts * y.columns(),
                  "{} experts, x {}, w {}, y {}", experts, x.describe(), w.describe(), y.describe());
    MAESTRO_CHECK(x.dtype == y.dtype, "x {}, y {}", x.describe(), y.describe());
}

}  // namespace

void grouped_linear(backend::Backend& b, const Tensor& x, const Tensor& w,
                    std::span<const std::int64_t> begin, const Tensor& y) {
    check(x, w, y, begin);
    MAESTRO_CHECK(w.dtype == x.dtype, "x {}, w {}", x.describe(), w.describe());
    if (y.size() == 0) return;
    b.grouped_gemm({.form = Form::output,
                    .a = x.data,
                    .b = w.data,
                    .y = y.data,
                    .begin = begin,
                    .inputs = x.columns(),
                    .outputs = y.columns(),
                    .in = x.dtype,
                    .out = y.dtype});
}

void grouped_linear_backward_input(backend::Backend& b, const Tensor& dy, const Tensor& w,
                                   std::span<const std::int64_t> begin, const Tensor& dx) {
    check(dx, w, dy, begin);
    MAESTRO_CHECK(w.dtype == dy.dtype, "dy {}, w {}", dy.describe(), w.describe());
    if (dx.size() == 0) return;
    b.grouped_gemm({.form = Form::input_gradient,
                    .a = dy.data,
                    .b = w.data,
                    .y = dx.data,
                    .begin = begin,
                    .inputs = dx.columns(),
                    .outputs = dy.columns(),
                    .in = dy.dtype,
                    .out = dx.dtype});
}

void grouped_linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x,
                                    std::span<const std::int64_t> begin, const Tensor& dw) {
    check(x, dw, dy, begin);
    MAESTRO_CHECK(dw.dtype == accumulate_type(x.dtype), "x {}, dw {}", x.describe(), dw.describe());
    if (x.size() == 0) return;
    b.grouped_gemm({.form = Form::weight_gradient,
                    .a = dy.data,
                    .b = x.data,
                    .y = dw.data,
                    .begin = begin,
                    .inputs = x.columns(),
                    .outputs = dy.columns(),
                    .in = dy.dtype,
                    .out = dw.dtype});
}

}  // namespace maestro::ops
