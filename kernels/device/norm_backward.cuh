// The backward pass of a norm of rows, such as RMSNorm: dx, and in the same pass over chunks of rows the sums
// over rows that are the gradients of the norm's parameters.
//
// `Norm` is the norm with the statistics that its forward pass saved. It has kSums, the number of sums over
// rows; kSpareRegisters, whether the kernel leaves registers unused; and row(r), what all elements of row r
// share. Of an element, a row computes
//   add(dy, x, w)        adds it to the row's own sums, which all threads then complete by finish(columns)
//   dx(dy, x, w)         the gradient of x
//   summand(s, dy, x)    its part of the sum s over rows
#pragma once

#include "kernels/device/block.cuh"
#include "kernels/device/column_sums.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

inline constexpr int kNormThreads = 512;

/// The rows of a block: chunk blockIdx.x of gridDim.x.
struct Chunk {
    std::int64_t begin, end;
    __device__ explicit Chunk(std::int64_t rows)
        : begin(rows * blockIdx.x / gridDim.x), end(rows * (blockIdx.x + 1) / gridDim.x) {}
};

/// Adds N elements of a row to the row's own sums.
template <class Row, class A, int N>
__device__ __forceinline__ void add(Row& row, const A (&dy)[N], const A (&x)[N], const A (&w)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) row.add(dy[i], x[i], w[i]);
}

/// Adds the gradients of N elements of a row to `dx` and `sums`.
template <class Row, class A, int N, int kSums>
__device__ __forceinline__ void add_gradients(const Row& row, const A (&dy)[N], const A (&x)[N],
                                              const A (&w)[N], A (&dx)[N], A (&sums)[kSums][N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        dx[i] += row.dx(dy[i], x[i], w[i]);
#pragma unroll
        for (int s = 0; s < kSums; ++s) sums[s][i] += row.summand(s, dy[i], x[i]);
    }
}

/// A block computes dx of a chunk of rows, and in the same pass what they add to the sums over rows: its rows
/// of partial [kSums, blocks, columns], unless that is null. A thread has the same columns of all rows:
/// kVectors vectors of N elements, whose weights and sums it keeps in registers. With spare registers,
/// two blocks share a multiprocessor, and the gradient so far is read with dy and x.
template <class T, int N, int kVectors, class Norm, class A = Accumulate<T>>
__global__ void __launch_bounds__(kNormThreads, kVectors == 1 && Norm::kSpareRegisters ? 2 : 1)
    backward(const T* dy, const T* x, const T* w, Norm norm, T* dx, std::int64_t rows, std::int64_t columns,
             bool accumulate, A* partial) {
    const Chunk chunk(rows);
    const std::int64_t first = threadIdx.x * N, stride = blockDim.x * N;
    A weight[kVectors][N] = {}, sums[kVectors][Norm::kSums][N] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
        if (const std::int64_t c = first + v * stride; c < columns) load<T, N>(w + c, weight[v]);
    for (std::int64_t r = chunk.begin; r < chunk.end; ++r) {
        const std::int64_t at = r * columns;
        auto row = norm.row(r);
        A gradient[kVectors][N] = {}, value[kVectors][N] = {}, before[kVectors][N] = {};
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const std::int64_t c = first + v * stride;
            if (c >= columns) continue;
            load<T, N>(dy + at + c, gradient[v]);
            load<T, N>(x + at + c, value[v]);
            if (Norm::kSpareRegisters && accumulate) load<T, N>(dx + at + c, before[v]);
            add(row, gradient[v], value[v], weight[v]);
        }
        row.finish(columns);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const std::int64_t c = first + v * stride;
            if (c >= columns) continue;
            if (!Norm::kSpareRegisters && accumulate) load<T, N>(dx + at + c, before[v]);
            add_gradients(row, gradient[v], value[v], weight[v], before[v], sums[v]);
            store<T, N>(before[v], dx + at + c);
        }
    }
    if (partial == nullptr) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
        if (const std::int64_t c = first + v * stride; c < columns)
#pragma unroll
            for (int s = 0; s < Norm::kSums; ++s)
                store<A, N>(sums[v][s], partial + (s * gridDim.x + blockIdx.x) * columns + c);
}

/// The same for rows that are too wide for registers: each thread keeps the sums of its columns in
/// `partial`, and reads dy and x a second time, soon after the first.
template <class T, int N, class Norm, class A = Accumulate<T>>
__global__ void __launch_bounds__(kNormThreads, 1)
    wide_backward(const T* dy, const T* x, const T* w, Norm norm, T* dx, std::int64_t rows,
                  std::int64_t columns, bool accumulate, A* partial) {
    const Chunk chunk(rows);
    A* sum_rows[Norm::kSums];
#pragma unroll
    for (int s = 0; s < Norm::kSums; ++s) sum_rows[s] = partial + (s * gridDim.x + blockIdx.x) * columns;
    for (std::int64_t r = chunk.begin; r < chunk.end; ++r) {
        const std::int64_t at = r * columns;
        auto row = norm.row(r);
        for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
            A gradient[N], value[N], weight[N];
            load<T, N>(dy + at + c, gradient);
            load<T, N>(x + at + c, value);
            load<T, N>(w + c, weight);
            add(row, gradient, value, weight);
        }
        row.finish(columns);
        for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
            A gradient[N], value[N], weight[N], before[N] = {}, sums[Norm::kSums][N] = {};
            load<T, N>(dy + at + c, gradient);
            load<T, N>(x + at + c, value);
            load<T, N>(w + c, weight);
            if (accumulate) load<T, N>(dx + at + c, before);
            if (partial != nullptr && r > chunk.begin)
#pragma unroll
                for (int s = 0; s < Norm::kSums; ++s) load<A, N>(sum_rows[s] + c, sums[s]);
            add_gradients(row, gradient, value, weight, before, sums);
            store<T, N>(before, dx + at + c);
            if (partial == nullptr) continue;
#pragma unroll
            for (int s = 0; s < Norm::kSums; ++s) store<A, N>(sums[s], sum_rows[s] + c);
        }
    }
}

/// partial: scratch of kSums x fused_row_chunks(rows) x columns elements.
template <class T, class Norm>
void norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Norm& norm,
                   const Array& dx, bool accumulate, const Array& partial) {
    using A = Accumulate<T>;
    by_vector_size<T>(
        [&]<int N>() {
            const std::int64_t vectors = divide_up(x.columns, N);
            const auto run = [&](auto* kernel, std::int64_t threads) {
                launch(kernel, fused_row_chunks(x.rows), row_threads(threads, kNormThreads),
                       kBlockReduceBytes<A>, stream, dy.as<T>(), x.as<T>(), w.as<T>(), norm, dx.as<T>(),
                       x.rows, x.columns, accumulate, partial.as<A>());
            };
            if (vectors <= kNormThreads)
                run(backward<T, N, 1, Norm>, vectors);
            else if (vectors <= 2 * kNormThreads)
                run(backward<T, N, 2, Norm>, divide_up(vectors, 2));
            else
                run(wide_backward<T, N, Norm>, vectors);
        },
        x.columns, dy.as<T>(), x.as<T>(), w.as<T>(), dx.as<T>(), partial.as<A>());
}

}  // namespace maestro::kernels
