#include "ops/linear.hpp"

#include "kernels/linear.hpp"
#include "ops/device_scratch.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"

namespace maestro::ops {

namespace {

void check_linear(const Tensor& x, const Tensor& w, const Tensor& y) {
    MAESTRO_CHECK(x.rows() == y.rows() || x.size() == 0, "rows of x {} and y {}", x.describe(), y.describe());
    MAESTRO_CHECK(w.rank == 2 && w.columns() == x.columns() && w.dim(0) == y.columns(), "x {}, w {}, y {}",
                  x.describe(), w.describe(), y.describe());
}

backend::Backend::Gemm gemm_of(const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
    check_linear(x, w, y);
    return {.a = x.data,
            .b = w.data,
            .y = y.data,
            .m = y.rows(),
            .n = y.columns(),
            .k = x.columns(),
            .lda = x.columns(),
            .ldb = w.columns(),
            .ldy = y.columns(),
            .transpose_a = false,
            .transpose_b = true,
            .accumulate = accumulate,
            .in = x.dtype,
            .out = y.dtype};
}

backend::Backend::Gemm weight_gradient_of(const Tensor& dy, const Tensor& x, const Tensor& dw) {
    check_linear(x, dw, dy);
    return {.a = dy.data,
            .b = x.data,
            .y = dw.data,
            .m = dw.dim(0),
            .n = dw.columns(),
            .k = dy.rows(),
            .lda = dy.columns(),
            .ldb = x.columns(),
            .ldy = dw.columns(),
            .transpose_a = true,
            .transpose_b = false,
            .accumulate = true,
            .in = dy.dtype,
            .out = dw.dtype};
}

}  // namespace

void linear(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& bias) {
    const auto gemm = gemm_of(x, w, y, false);
    if (y.size() == 0 || (bias.rank != 0 && b.gemm_with(gemm, {.bias = bias.data}))) return;
    b.gemm(gemm);
    if (bias.rank != 0) add_bias(b, bias, y);
}

void linear_gelu(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                 const Tensor& active, GeluForm form) {
    MAESTRO_CHECK(active.size() == y.size() && active.dtype == y.dtype && bias.size() == y.columns(),
                  "y {}, active {}, bias {}", y.describe(), active.describe(), bias.describe());
    const auto gemm = gemm_of(x, w, y, false);
    if (y.size() == 0) return;
    // The epilogue of cuBLASLt is the tanh approximation.
    if (form == GeluForm::tanh && b.gemm_with(gemm, {.bias = bias.data, .activated = active.data})) return;
    linear(b, x, w, y, bias);
    gelu(b, y, active, form);
}

void add_bias(backend::Backend& b, const Tensor& bias, const Tensor& y) {
    if (y.size() == 0) return;
    MAESTRO_CHECK(bias.size() == y.columns(), "bias {} for {}", bias.describe(), y.describe());
    const std::int64_t columns = y.columns();
    b.launch(
        {static_cast<double>(y.size()), 2.0 * static_cast<double>(y.bytes())},
        [&] {
            by_type(y.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                T* out = y.as<T>();
                const T* add = bias.as<T>();
                parallel_for(y.rows(), columns, [&](std::int64_t r) {
                    T* row = out + r * columns;
                    for (std::int64_t c = 0; c < columns; ++c)
                        row[c] = static_cast<T>(static_cast<A>(row[c]) + static_cast<A>(add[c]));
                });
            });
        },
        [&](Stream stream) { kernels::add_bias(stream, bias, y); });
}

void linear_accumulate(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y,
                       const Tensor& addend) {
    MAESTRO_CHECK(addend.rank == 0 || (addend.size() == y.size() && addend.dtype == y.dtype),
                  "y {}, addend {}", y.describe(), addend.describe());
    const auto gemm = gemm_of(x, w, y, true);
    if (y.size() == 0) return;
    if (addend.rank != 0) {
        if (b.gemm_with(gemm, {.addend = addend.data})) return;
        convert(b, addend, y);
    }
    b.gemm(gemm);
}

void linear_backward_input(backend::Backend& b, const Tensor& dy, const Tensor& w, const Tensor& dx,
                           bool accumulate) {
    check_linear(dx, w, dy);
    if (dx.size() == 0) return;
    b.gemm({.a = dy.data,
            .b = w.data,
            .y = dx.data,
            .m = dx.rows(),
            .n = dx.columns(),
            .k = dy.columns(),
            .lda = dy.columns(),
            .ldb = w.columns(),
            .ldy = dx.columns(),
            .transpose_a = false,
            .transpose_b = false,
            .accumulate = accumulate,
            .in = dy.dtype,
            .out = dx.dtype});
}

void linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dw) {
    const auto gemm = weight_gradient_of(dy, x, dw);
    if (x.size() > 0) b.gemm(gemm);
}

void linear_backward_weight(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias, backend::Arena& scratch) {
    MAESTRO_CHECK(dbias.size() == dy.columns() && dbias.dtype == dw.dtype, "dbias {} for {} and {}",
                  dbias.describe(), dy.describe(), dw.describe());
    if (x.size() > 0) {
        const backend::ArenaScope scope(scratch);
        const Tensor sums = device_scratch(b, scratch, dbias.dtype, {dbias.size()});
        if (b.gemm_with(weight_gradient_of(dy, x, dw), {.column_sums = sums.data}))
            return add(b, sums, dbias);
    }
    linear_backward_weight(b, dy, x, dw);
    bias_backward(b, dy, dbias, scratch);
}

void bias_backward(backend::Backend& b, const Tensor& dy, const Tensor& dbias, backend::Arena& scratch) {
    MAESTRO_CHECK(dbias.size() == dy.columns(), "dbias {} for {}", dbias.describe(), dy.describe());
    const std::int64_t rows = dy.rows(), columns = dy.columns();
    const backend::ArenaScope scope(scratch);
    const Tensor partial = row_partials(b, rows, columns, dbias.dtype, scratch);
    b.launch(
        {static_cast<double>(dy.size()), static_cast<double>(dy.bytes())},
        [&] {
            by_type(dy.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = dy.as<T>();
                A* out = dbias.as<A>();
                parallel_columns(columns, rows, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t r = 0; r < rows; ++r)
                        for (std::int64_t c = begin; c < end; ++c)
                            out[c] += static_cast<A>(in[r * columns + c]);
                });
            });
        },
        [&](Stream stream) { kernels::bias_backward(stream, dy, dbias, partial); });
}

}  // namespace maestro::ops
