#include "ops/layer_norm.hpp"

#include <cmath>

#include "kernels/layer_norm.hpp"
#include "ops/device_scratch.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

void layer_norm(backend::Backend& b, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                const Tensor& mean, const Tensor& rstd, double eps) {
    const std::int64_t rows = x.rows(), columns = x.columns();
    MAESTRO_CHECK(y.size() == x.size() && w.size() == columns && bias.size() == columns,
                  "x {}, w {}, bias {}, y {}", x.describe(), w.describe(), bias.describe(), y.describe());
    MAESTRO_CHECK(mean.size() == rows && rstd.size() == rows, "x {}, mean {}, rstd {}", x.describe(),
                  mean.describe(), rstd.describe());
    b.launch(
        {7.0 * static_cast<double>(x.size()), 2.0 * static_cast<double>(x.bytes())},
        [&] {
            by_type(x.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = x.as<T>();
                const T* weight = w.as<T>();
                const T* shift = bias.as<T>();
                T* out = y.as<T>();
                A* centre = mean.as<A>();
                A* scale = rstd.as<A>();
                parallel_for(rows, columns * 3, [&](std::int64_t r) {
                    const T* row = in + r * columns;
                    A sum = 0;
#pragma omp simd reduction(+ : sum)
                    for (std::int64_t c = 0; c < columns; ++c) sum += static_cast<A>(row[c]);
                    const A m = sum / static_cast<A>(columns);
                    A squares = 0;
#pragma omp simd reduction(+ : squares)
                    for (std::int64_t c = 0; c < columns; ++c) {
                        const A difference = static_cast<A>(row[c]) - m;
                        squares += difference * difference;
                    }
                    const A s = A(1) / std::sqrt(squares / static_cast<A>(columns) + static_cast<A>(eps));
                    centre[r] = m;
                    scale[r] = s;
                    for (std::int64_t c = 0; c < columns; ++c)
                        out[r * columns + c] =
                            static_cast<T>((static_cast<A>(row[c]) - m) * s * static_cast<A>(weight[c]) +
                                           static_cast<A>(shift[c]));
                });
            });
        },
        [&](Stream stream) { kernels::layer_norm(stream, x, w, bias, y, mean, rstd, eps); });
}

void layer_norm_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& w,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx, const Tensor& dw,
                         const Tensor& dbias, bool accumulate, backend::Arena& scratch) {
    const std::int64_t rows = x.rows(), columns = x.columns();
    MAESTRO_CHECK(dy.size() == x.size() && dx.size() == x.size() && w.size() == columns,
                  "dy {}, x {}, w {}, dx {}", dy.describe(), x.describe(), w.describe(), dx.describe());
    MAESTRO_CHECK(mean.size() == rows && rstd.size() == rows, "x {}, mean {}, rstd {}", x.describe(),
                  mean.describe(), rstd.describe());
    MAESTRO_CHECK(
        dw.rank == dbias.rank && (dw.rank == 0 || (dw.size() == columns && dbias.size() == columns)),
        "x {}, dw {}, dbias {}", x.describe(), dw.describe(), dbias.describe());
    const backend::ArenaScope scope(scratch);
    const Tensor partial =
        dw.rank == 0 ? Tensor{}
                     : device_scratch(b, scratch, rstd.dtype, {2 * kernels::fused_row_chunks(rows), columns});
    b.launch(
        {16.0 * static_cast<double>(x.size()), 4.0 * static_cast<double>(x.bytes())},
        [&] {
            by_type(x.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = x.as<T>();
                const T* weight = w.as<T>();
                const T* out_gradient = dy.as<T>();
                const A* centre = mean.as<A>();
                const A* scale = rstd.as<A>();
                T* in_gradient = dx.as<T>();
                // First the sums over rows, because dx may overwrite dy.
                if (dw.rank != 0) {
                    A* weight_gradient = dw.as<A>();
                    A* bias_gradient = dbias.as<A>();
                    parallel_columns(columns, rows, [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t r = 0; r < rows; ++r) {
                            const A m = centre[r], s = scale[r];
                            for (std::int64_t c = begin; c < end; ++c) {
                                const A gradient = static_cast<A>(out_gradient[r * columns + c]);
                                weight_gradient[c] +=
                                    gradient * ((static_cast<A>(in[r * columns + c]) - m) * s);
                                bias_gradient[c] += gradient;
                            }
                        }
                    });
                }
                parallel_for(rows, columns * 6, [&](std::int64_t r) {
                    const T* xr = in + r * columns;
                    const T* gr = out_gradient + r * columns;
                    T* target = in_gradient + r * columns;
                    const A m = centre[r], s = scale[r];
                    A sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
                    for (std::int64_t c = 0; c < columns; ++c) {
                        const A g = static_cast<A>(gr[c]) * static_cast<A>(weight[c]);
                        sum += g;
                        dot += g * ((static_cast<A>(xr[c]) - m) * s);
                    }
                    const A mean_g = sum / static_cast<A>(columns), mean_dot = dot / static_cast<A>(columns);
                    for (std::int64_t c = 0; c < columns; ++c) {
                        const A normalized = (static_cast<A>(xr[c]) - m) * s;
                        const A g = s * (static_cast<A>(gr[c]) * static_cast<A>(weight[c]) - mean_g -
                                         normalized * mean_dot);
                        target[c] = static_cast<T>(accumulate ? static_cast<A>(target[c]) + g : g);
                    }
                });
            });
        },
        [&](Stream stream) {
            kernels::layer_norm_backward(stream, dy, x, w, mean, rstd, dx, dw, dbias, accumulate, partial);
        });
}

}  // namespace maestro::ops
