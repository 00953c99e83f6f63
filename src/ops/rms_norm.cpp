#include "ops/rms_norm.hpp"

#include <cmath>

#include "kernels/rms_norm.hpp"
#include "ops/device_scratch.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

void rms_norm(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& rstd,
              double eps) {
    const std::int64_t rows = x.rows(), columns = x.columns();
    MAESTRO_CHECK(y.size() == x.size() && w.size() == columns && rstd.size() == rows,
                  "x {}, w {}, y {}, rstd {}", x.describe(), w.describe(), y.describe(), rstd.describe());
    b.launch(
        {4.0 * static_cast<double>(x.size()), 2.0 * static_cast<double>(x.bytes())},
        [&] {
            by_type(x.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = x.as<T>();
                const T* weight = w.as<T>();
                T* out = y.as<T>();
                A* scale = rstd.as<A>();
                parallel_for(rows, columns * 2, [&](std::int64_t r) {
                    const T* row = in + r * columns;
                    A sum = 0;
#pragma omp simd reduction(+ : sum)
                    for (std::int64_t c = 0; c < columns; ++c)
                        sum += static_cast<A>(row[c]) * static_cast<A>(row[c]);
                    const A s = A(1) / std::sqrt(sum / static_cast<A>(columns) + static_cast<A>(eps));
                    scale[r] = s;
                    for (std::int64_t c = 0; c < columns; ++c)
                        out[r * columns + c] =
                            static_cast<T>(static_cast<A>(row[c]) * s * static_cast<A>(weight[c]));
                });
            });
        },
        [&](Stream stream) { kernels::rms_norm(stream, x, w, y, rstd, eps); });
}

void rms_norm_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& w,
                       const Tensor& rstd, const Tensor& dx, const Tensor& dw, bool accumulate,
                       backend::Arena& scratch) {
    const std::int64_t rows = x.rows(), columns = x.columns();
    MAESTRO_CHECK(dy.size() == x.size() && dx.size() == x.size() && rstd.size() == rows, "dy {}, x {}, dx {}",
                  dy.describe(), x.describe(), dx.describe());
    const backend::ArenaScope scope(scratch);
    const Tensor partial =
        dw.rank == 0 ? Tensor{}
                     : device_scratch(b, scratch, rstd.dtype, {kernels::fused_row_chunks(rows), columns});
    b.launch(
        {10.0 * static_cast<double>(x.size()), 4.0 * static_cast<double>(x.bytes())},
        [&] {
            by_type(x.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = x.as<T>();
                const T* weight = w.as<T>();
                const T* out_gradient = dy.as<T>();
                const A* scale = rstd.as<A>();
                T* in_gradient = dx.as<T>();
                parallel_for(rows, columns * 4, [&](std::int64_t r) {
                    const T* xr = in + r * columns;
                    const T* gr = out_gradient + r * columns;
                    T* target = in_gradient + r * columns;
                    A dot = 0;
#pragma omp simd reduction(+ : dot)
                    for (std::int64_t c = 0; c < columns; ++c)
                        dot += static_cast<A>(gr[c]) * static_cast<A>(weight[c]) * static_cast<A>(xr[c]);
                    const A s = scale[r];
                    const A shared = dot * s * s * s / static_cast<A>(columns);
                    for (std::int64_t c = 0; c < columns; ++c) {
                        const A g = static_cast<A>(gr[c]) * static_cast<A>(weight[c]) * s -
                                    static_cast<A>(xr[c]) * shared;
                        target[c] = static_cast<T>(accumulate ? static_cast<A>(target[c]) + g : g);
                    }
                });
                if (dw.rank == 0) return;
                A* weight_gradient = dw.as<A>();
                parallel_columns(columns, rows, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t r = 0; r < rows; ++r) {
                        const A s = scale[r];
                        for (std::int64_t c = begin; c < end; ++c)
                            weight_gradient[c] += static_cast<A>(out_gradient[r * columns + c]) *
                                                  static_cast<A>(in[r * columns + c]) * s;
                    }
                });
            });
        },
        [&](Stream stream) {
            kernels::rms_norm_backward(stream, dy, x, w, rstd, dx, dw, accumulate, partial);
        });
}

}  // namespace maestro::ops
