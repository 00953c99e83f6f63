#include "kernels/rms_norm.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/column_sums.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

constexpr int kRowThreads = 512;

/// A block normalizes one row.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
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

/// The gradients of N elements of a row: adds to `before`, the gradient of x so far, and to `sum`, that of
/// the weight. `shared` is the factor that all elements of the row have in common, because each of them
/// changes the root mean square.
template <class A, int N>
__device__ __forceinline__ void add_gradients(const A (&gradient)[N], const A (&value)[N],
                                              const A (&weight)[N], A scale, A shared, A (&before)[N],
                                              A (&sum)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        before[i] += gradient[i] * weight[i] * scale - value[i] * shared;
        sum[i] += gradient[i] * value[i] * scale;
    }
}

/// The rows of a block: chunk blockIdx.x of gridDim.x.
struct Chunk {
    std::int64_t begin, end;
    __device__ explicit Chunk(std::int64_t rows)
        : begin(rows * blockIdx.x / gridDim.x), end(rows * (blockIdx.x + 1) / gridDim.x) {}
};

/// A block computes dx of a chunk of rows, and in the same pass the sum of what they add to dw: its row of
/// partial [blocks, columns], unless that is null. A thread has the same columns of all rows: kVectors
/// vectors of N elements, whose weights and sums it keeps in registers.
template <class T, int N, int kVectors>
__global__ void __launch_bounds__(kRowThreads, kVectors == 1 ? 2 : 1)
    backward(const T* dy, const T* x, const T* w, const Accumulate<T>* rstd, T* dx, std::int64_t rows,
             std::int64_t columns, bool accumulate, Accumulate<T>* partial) {
    using A = Accumulate<T>;
    const Chunk chunk(rows);
    const std::int64_t first = threadIdx.x * N, stride = blockDim.x * N;
    A weight[kVectors][N] = {}, sum[kVectors][N] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
        if (const std::int64_t c = first + v * stride; c < columns) load<T, N>(w + c, weight[v]);
    for (std::int64_t row = chunk.begin; row < chunk.end; ++row) {
        const std::int64_t at = row * columns;
        const A scale = rstd[row];
        A gradient[kVectors][N] = {}, value[kVectors][N] = {}, before[kVectors][N] = {};
        A dot = 0;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const std::int64_t c = first + v * stride;
            if (c >= columns) continue;
            load<T, N>(dy + at + c, gradient[v]);
            load<T, N>(x + at + c, value[v]);
            if (accumulate) load<T, N>(dx + at + c, before[v]);
#pragma unroll
            for (int i = 0; i < N; ++i) dot += gradient[v][i] * weight[v][i] * value[v][i];
        }
        dot = block_reduce(dot, Sum{}, A(0), shared_memory<A>());
        const A shared = dot * scale * scale * scale / static_cast<A>(columns);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const std::int64_t c = first + v * stride;
            if (c >= columns) continue;
            add_gradients(gradient[v], value[v], weight[v], scale, shared, before[v], sum[v]);
            store<T, N>(before[v], dx + at + c);
        }
    }
    if (partial == nullptr) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
        if (const std::int64_t c = first + v * stride; c < columns)
            store<A, N>(sum[v], partial + blockIdx.x * columns + c);
}

/// The same for rows that are too wide for registers: each thread keeps the sums of its columns in
/// `partial`, and reads dy and x a second time, soon after the first.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads, 1)
    wide_backward(const T* dy, const T* x, const T* w, const Accumulate<T>* rstd, T* dx, std::int64_t rows,
                  std::int64_t columns, bool accumulate, Accumulate<T>* partial) {
    using A = Accumulate<T>;
    const Chunk chunk(rows);
    A* const sums = partial + blockIdx.x * columns;
    for (std::int64_t row = chunk.begin; row < chunk.end; ++row) {
        const std::int64_t at = row * columns;
        A dot = 0;
        for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
            A gradient[N], value[N], weight[N];
            load<T, N>(dy + at + c, gradient);
            load<T, N>(x + at + c, value);
            load<T, N>(w + c, weight);
#pragma unroll
            for (int i = 0; i < N; ++i) dot += gradient[i] * weight[i] * value[i];
        }
        dot = block_reduce(dot, Sum{}, A(0), shared_memory<A>());
        const A scale = rstd[row];
        const A shared = dot * scale * scale * scale / static_cast<A>(columns);
        for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
            A gradient[N], value[N], weight[N], before[N] = {}, sum[N] = {};
            load<T, N>(dy + at + c, gradient);
            load<T, N>(x + at + c, value);
            load<T, N>(w + c, weight);
            if (accumulate) load<T, N>(dx + at + c, before);
            if (partial != nullptr && row > chunk.begin) load<A, N>(sums + c, sum);
            add_gradients(gradient, value, weight, scale, shared, before, sum);
            store<T, N>(before, dx + at + c);
            if (partial != nullptr) store<A, N>(sum, sums + c);
        }
    }
}

}  // namespace

void rms_norm(Stream stream, const Array& x, const Array& w, const Array& y, const Array& rstd, double eps) {
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch(forward<T, N>, x.rows, row_threads(x.columns / N, kRowThreads), kBlockReduceBytes<A>,
                       stream, x.as<T>(), w.as<T>(), y.as<T>(), rstd.as<A>(), x.columns, static_cast<A>(eps));
            },
            x.columns, x.as<T>(), w.as<T>(), y.as<T>());
    });
}

void rms_norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Array& rstd,
                       const Array& dx, const Array& dw, bool accumulate, const Array& partial) {
    const std::int64_t chunks = fused_row_chunks(x.rows);
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                const std::int64_t vectors = divide_up(x.columns, N);
                const auto run = [&](auto* kernel, std::int64_t threads) {
                    launch(kernel, chunks, row_threads(threads, kRowThreads), kBlockReduceBytes<A>, stream,
                           dy.as<T>(), x.as<T>(), w.as<T>(), rstd.as<A>(), dx.as<T>(), x.rows, x.columns,
                           accumulate, partial.as<A>());
                };
                if (vectors <= kRowThreads)
                    run(backward<T, N, 1>, vectors);
                else if (vectors <= 2 * kRowThreads)
                    run(backward<T, N, 2>, divide_up(vectors, 2));
                else
                    run(wide_backward<T, N>, vectors);
            },
            x.columns, dy.as<T>(), x.as<T>(), w.as<T>(), dx.as<T>(), partial.as<A>());
        if (!dw.absent())
            add_chunk_sums(stream, ChunkSums<A>{partial.as<A>(), x.columns}, chunks, x.columns, dw.as<A>());
    });
}

}  // namespace maestro::kernels
