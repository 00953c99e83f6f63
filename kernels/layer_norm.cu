#include "kernels/layer_norm.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/column_sums.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

constexpr int kRowThreads = 512;

/// A block normalizes one row. It reads the row three times, of which caches serve two: for the mean, for the
/// variance around it, and for the result.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    forward(const T* x, const T* w, const T* bias, T* y, Accumulate<T>* mean, Accumulate<T>* rstd,
            std::int64_t columns, Accumulate<T> eps) {
    using A = Accumulate<T>;
    const std::int64_t row = blockIdx.x * columns;
    A sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N];
        load<T, N>(x + row + c, value);
#pragma unroll
        for (int i = 0; i < N; ++i) sum += value[i];
    }
    sum = block_reduce(sum, Sum{}, A(0), shared_memory<A>());
    const A centre = sum / static_cast<A>(columns);
    A squares = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N];
        load<T, N>(x + row + c, value);
#pragma unroll
        for (int i = 0; i < N; ++i) squares += (value[i] - centre) * (value[i] - centre);
    }
    squares = block_reduce(squares, Sum{}, A(0), shared_memory<A>());
    const A scale = A(1) / sqrt(squares / static_cast<A>(columns) + eps);
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = centre;
        rstd[blockIdx.x] = scale;
    }
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N], weight[N], shift[N];
        load<T, N>(x + row + c, value);
        load<T, N>(w + c, weight);
        load<T, N>(bias + c, shift);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = (value[i] - centre) * scale * weight[i] + shift[i];
        store<T, N>(value, y + row + c);
    }
}

/// What all elements of a row share: its statistics, and the means of g = w * dy and of g * n, because each
/// element changes the mean and the variance.
template <class A>
struct Row {
    A centre, scale, mean_g = 0, mean_dot = 0;

    __device__ A normalized(A value) const { return (value - centre) * scale; }
};

/// Adds N elements of a row to the sums of g and of g * n.
template <class A, int N>
__device__ __forceinline__ void add_means(const A (&gradient)[N], const A (&value)[N], const A (&weight)[N],
                                          const Row<A>& row, A& sum, A& dot) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const A g = gradient[i] * weight[i];
        sum += g;
        dot += g * row.normalized(value[i]);
    }
}

/// The gradients of N elements of a row: adds to `before`, the gradient of x so far, to `dw` and to `dbias`.
template <class A, int N>
__device__ __forceinline__ void add_gradients(const A (&gradient)[N], const A (&value)[N],
                                              const A (&weight)[N], const Row<A>& row, A (&before)[N],
                                              A (&dw)[N], A (&dbias)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const A n = row.normalized(value[i]);
        before[i] += row.scale * (gradient[i] * weight[i] - row.mean_g - n * row.mean_dot);
        dw[i] += gradient[i] * n;
        dbias[i] += gradient[i];
    }
}

/// The rows of a block: chunk blockIdx.x of gridDim.x.
struct Chunk {
    std::int64_t begin, end;
    __device__ explicit Chunk(std::int64_t rows)
        : begin(rows * blockIdx.x / gridDim.x), end(rows * (blockIdx.x + 1) / gridDim.x) {}
};

/// Sums over a block's threads, and divides by the number of columns.
template <class A>
__device__ __forceinline__ void finish_means(A sum, A dot, std::int64_t columns, Row<A>& row) {
    A* const smem = shared_memory<A>();
    row.mean_g = block_reduce(sum, Sum{}, A(0), smem) / static_cast<A>(columns);
    row.mean_dot = block_reduce(dot, Sum{}, A(0), smem) / static_cast<A>(columns);
}

/// A block computes dx of a chunk of rows, and in the same pass the sums of what they add to dw and dbias:
/// its rows of partial [2, blocks, columns], unless that is null. A thread has the same columns of all rows:
/// kVectors vectors of N elements, whose weights and sums it keeps in registers.
template <class T, int N, int kVectors>
__global__ void __launch_bounds__(kRowThreads, 1)
    backward(const T* dy, const T* x, const T* w, const Accumulate<T>* mean, const Accumulate<T>* rstd, T* dx,
             std::int64_t rows, std::int64_t columns, bool accumulate, Accumulate<T>* partial) {
    using A = Accumulate<T>;
    const Chunk chunk(rows);
    const std::int64_t first = threadIdx.x * N, stride = blockDim.x * N;
    A weight[kVectors][N] = {}, dw[kVectors][N] = {}, dbias[kVectors][N] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
        if (const std::int64_t c = first + v * stride; c < columns) load<T, N>(w + c, weight[v]);
    for (std::int64_t r = chunk.begin; r < chunk.end; ++r) {
        const std::int64_t at = r * columns;
        Row<A> row{mean[r], rstd[r]};
        A gradient[kVectors][N] = {}, value[kVectors][N] = {};
        A sum = 0, dot = 0;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const std::int64_t c = first + v * stride;
            if (c >= columns) continue;
            load<T, N>(dy + at + c, gradient[v]);
            load<T, N>(x + at + c, value[v]);
            add_means(gradient[v], value[v], weight[v], row, sum, dot);
        }
        finish_means(sum, dot, columns, row);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const std::int64_t c = first + v * stride;
            if (c >= columns) continue;
            A before[N] = {};
            if (accumulate) load<T, N>(dx + at + c, before);
            add_gradients(gradient[v], value[v], weight[v], row, before, dw[v], dbias[v]);
            store<T, N>(before, dx + at + c);
        }
    }
    if (partial == nullptr) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
        if (const std::int64_t c = first + v * stride; c < columns) {
            store<A, N>(dw[v], partial + blockIdx.x * columns + c);
            store<A, N>(dbias[v], partial + (gridDim.x + blockIdx.x) * columns + c);
        }
}

/// The same for rows that are too wide for registers: each thread keeps the sums of its columns in
/// `partial`, and reads dy and x a second time, soon after the first.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads, 1)
    wide_backward(const T* dy, const T* x, const T* w, const Accumulate<T>* mean, const Accumulate<T>* rstd,
                  T* dx, std::int64_t rows, std::int64_t columns, bool accumulate, Accumulate<T>* partial) {
    using A = Accumulate<T>;
    const Chunk chunk(rows);
    A* const dw_sums = partial + blockIdx.x * columns;
    A* const dbias_sums = partial + (gridDim.x + blockIdx.x) * columns;
    for (std::int64_t r = chunk.begin; r < chunk.end; ++r) {
        const std::int64_t at = r * columns;
        Row<A> row{mean[r], rstd[r]};
        A sum = 0, dot = 0;
        for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
            A gradient[N], value[N], weight[N];
            load<T, N>(dy + at + c, gradient);
            load<T, N>(x + at + c, value);
            load<T, N>(w + c, weight);
            add_means(gradient, value, weight, row, sum, dot);
        }
        finish_means(sum, dot, columns, row);
        for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
            A gradient[N], value[N], weight[N], before[N] = {}, dw[N] = {}, dbias[N] = {};
            load<T, N>(dy + at + c, gradient);
            load<T, N>(x + at + c, value);
            load<T, N>(w + c, weight);
            if (accumulate) load<T, N>(dx + at + c, before);
            if (partial != nullptr && r > chunk.begin) {
                load<A, N>(dw_sums + c, dw);
                load<A, N>(dbias_sums + c, dbias);
            }
            add_gradients(gradient, value, weight, row, before, dw, dbias);
            store<T, N>(before, dx + at + c);
            if (partial == nullptr) continue;
            store<A, N>(dw, dw_sums + c);
            store<A, N>(dbias, dbias_sums + c);
        }
    }
}

}  // namespace

void layer_norm(Stream stream, const Array& x, const Array& w, const Array& bias, const Array& y,
                const Array& mean, const Array& rstd, double eps) {
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch(forward<T, N>, x.rows, row_threads(x.columns / N, kRowThreads), kBlockReduceBytes<A>,
                       stream, x.as<T>(), w.as<T>(), bias.as<T>(), y.as<T>(), mean.as<A>(), rstd.as<A>(),
                       x.columns, static_cast<A>(eps));
            },
            x.columns, x.as<T>(), w.as<T>(), bias.as<T>(), y.as<T>());
    });
}

void layer_norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Array& mean,
                         const Array& rstd, const Array& dx, const Array& dw, const Array& dbias,
                         bool accumulate, const Array& partial) {
    const std::int64_t chunks = fused_row_chunks(x.rows);
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                const std::int64_t vectors = divide_up(x.columns, N);
                const auto run = [&](auto* kernel, std::int64_t threads) {
                    launch(kernel, chunks, row_threads(threads, kRowThreads), kBlockReduceBytes<A>, stream,
                           dy.as<T>(), x.as<T>(), w.as<T>(), mean.as<A>(), rstd.as<A>(), dx.as<T>(), x.rows,
                           x.columns, accumulate, partial.as<A>());
                };
                if (vectors <= kRowThreads)
                    run(backward<T, N, 1>, vectors);
                else if (vectors <= 2 * kRowThreads)
                    run(backward<T, N, 2>, divide_up(vectors, 2));
                else
                    run(wide_backward<T, N>, vectors);
            },
            x.columns, dy.as<T>(), x.as<T>(), w.as<T>(), dx.as<T>(), partial.as<A>());
        if (dw.absent()) return;
        const A* const weight_sums = partial.as<A>();
        const A* const bias_sums = weight_sums + chunks * x.columns;
        add_chunk_sums(stream, ChunkSums<A>{weight_sums, x.columns}, chunks, x.columns, dw.as<A>());
        add_chunk_sums(stream, ChunkSums<A>{bias_sums, x.columns}, chunks, x.columns, dbias.as<A>());
    });
}

}  // namespace maestro::kernels
