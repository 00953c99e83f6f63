#include "kernels/rms_norm.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/column_sums.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

/// A block normalizes one row.
template <class T, int N>
__global__ void __launch_bounds__(512)
    forward(const T* x, const T* w, T* y, Accumulate<T>* rstd, std::int64_t columns, Accumulate<T> eps) {
    using A = Accumulate<T>;
    const std::int64_t row = blockIdx.x * columns;
    A sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N];
        load<T, N>(x + row + c, value);
#pragma unroll
        for (int i = 0; i < N; ++i) sum += value[i] * value[i];
    }
    sum = block_reduce(sum, Sum{}, A(0), shared_memory<A>());
    const A scale = A(1) / sqrt(sum / static_cast<A>(columns) + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N], weight[N];
        load<T, N>(x + row + c, value);
        load<T, N>(w + c, weight);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = value[i] * scale * weight[i];
        store<T, N>(value, y + row + c);
    }
}

/// A block computes dx of one row. `shared` is the factor that all elements of the row have in common,
/// because each of them changes the root mean square.
template <class T, int N>
__global__ void __launch_bounds__(512)
    backward(const T* dy, const T* x, const T* w, const Accumulate<T>* rstd, T* dx, std::int64_t columns,
             bool accumulate) {
    using A = Accumulate<T>;
    const std::int64_t row = blockIdx.x * columns;
    A dot = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A gradient[N], value[N], weight[N];
        load<T, N>(dy + row + c, gradient);
        load<T, N>(x + row + c, value);
        load<T, N>(w + c, weight);
#pragma unroll
        for (int i = 0; i < N; ++i) dot += gradient[i] * weight[i] * value[i];
    }
    dot = block_reduce(dot, Sum{}, A(0), shared_memory<A>());
    const A scale = rstd[blockIdx.x];
    const A shared = dot * scale * scale * scale / static_cast<A>(columns);
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A gradient[N], value[N], weight[N], before[N];
        load<T, N>(dy + row + c, gradient);
        load<T, N>(x + row + c, value);
        load<T, N>(w + c, weight);
        if (accumulate) load<T, N>(dx + row + c, before);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const A found = gradient[i] * weight[i] * scale - value[i] * shared;
            value[i] = accumulate ? before[i] + found : found;
        }
        store<T, N>(value, dx + row + c);
    }
}

/// The contribution of a row to the weights' gradient.
template <class T>
struct WeightGradient {
    const T *dy, *x;
    const Accumulate<T>* rstd;
    std::int64_t columns;
    __device__ Accumulate<T> operator()(std::int64_t row, std::int64_t column) const {
        const std::int64_t at = row * columns + column;
        return widen(dy[at]) * widen(x[at]) * rstd[row];
    }
};

}  // namespace

void rms_norm(Stream stream, const Array& x, const Array& w, const Array& y, const Array& rstd, double eps) {
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch(forward<T, N>, x.rows, row_threads(x.columns / N), kBlockReduceBytes<A>, stream,
                       x.as<T>(), w.as<T>(), y.as<T>(), rstd.as<A>(), x.columns, static_cast<A>(eps));
            },
            x.columns, x.as<T>(), w.as<T>(), y.as<T>());
    });
}

void rms_norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Array& rstd,
                       const Array& dx, const Array& dw, bool accumulate, const Array& partial) {
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch(backward<T, N>, x.rows, row_threads(x.columns / N), kBlockReduceBytes<A>, stream,
                       dy.as<T>(), x.as<T>(), w.as<T>(), rstd.as<A>(), dx.as<T>(), x.columns, accumulate);
            },
            x.columns, dy.as<T>(), x.as<T>(), w.as<T>(), dx.as<T>());
        if (!dw.absent())
            add_column_sums(stream, WeightGradient<T>{dy.as<T>(), x.as<T>(), rstd.as<A>(), x.columns}, x.rows,
                            x.columns, partial.as<A>(), dw.as<A>());
    });
}

}  // namespace maestro::kernels
