// Sums of computed elements over the rows of a matrix, such as the gradient of a weight that all rows share.
// The first kernel sums over chunks of rows, the second over the chunks, both in a fixed order. Atomics would
// need one kernel, but their order, and so the last bits of the sums, would differ from run to run.
#pragma once

#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/row_chunks.hpp"

namespace maestro::kernels {

inline constexpr int kColumnTile = 32, kRowLanes = 8, kChunkLanes = 16;

/// A block sums kColumnTile columns over one chunk of rows. Threads of a warp read adjacent columns.
template <class A, class Value>
__global__ void __launch_bounds__(kColumnTile* kRowLanes)
    sum_chunks(Value value, std::int64_t rows, std::int64_t columns, std::int64_t chunk_rows, A* partial) {
    A* smem = shared_memory<A>();
    const int lane = static_cast<int>(threadIdx.x % kColumnTile),
              row_lane = static_cast<int>(threadIdx.x / kColumnTile);
    const std::int64_t tiles = (columns + kColumnTile - 1) / kColumnTile;
    const std::int64_t chunk = blockIdx.x / tiles, column = blockIdx.x % tiles * kColumnTile + lane;
    const std::int64_t begin = chunk * chunk_rows;
    const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
    A sum = 0;
    if (column < columns)
        for (std::int64_t row = begin + row_lane; row < end; row += kRowLanes) sum += value(row, column);
    smem[threadIdx.x] = sum;
    __syncthreads();
    if (row_lane > 0 || column >= columns) return;
    for (int i = 1; i < kRowLanes; ++i) sum += smem[i * kColumnTile + lane];
    partial[chunk * columns + column] = sum;
}

/// out[c] += the sum of sums(chunk, c) over the chunks. A block sums kColumnTile columns: each of its warps
/// every kChunkLanes-th chunk, and the first warp adds these sums in the order of the warps.
template <class A, class Sums>
__global__ void __launch_bounds__(kColumnTile* kChunkLanes)
    add_chunks(Sums sums, std::int64_t chunks, std::int64_t columns, A* out) {
    A* smem = shared_memory<A>();
    const int lane = static_cast<int>(threadIdx.x % kColumnTile),
              chunk_lane = static_cast<int>(threadIdx.x / kColumnTile);
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumnTile + lane;
    A sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (std::int64_t chunk = chunk_lane; chunk < chunks; chunk += kChunkLanes)
            sum += sums(chunk, column);
    }
    smem[threadIdx.x] = sum;
    __syncthreads();
    if (chunk_lane > 0 || column >= columns) return;
    for (int i = 1; i < kChunkLanes; ++i) sum += smem[i * kColumnTile + lane];
    out[column] += sum;
}

/// Sums of chunks [chunks, columns].
template <class A>
struct ChunkSums {
    const A* partial;
    std::int64_t columns;
    __device__ A operator()(std::int64_t chunk, std::int64_t column) const {
        return partial[chunk * columns + column];
    }
};

/// The same of chunks that consist of many small ones: the rows of partial [rows, columns], `chunk_rows` in
/// each, kRowLanes of them at a time.
template <class A>
struct NestedChunkSums {
    const A* partial;
    std::int64_t rows, columns, chunk_rows;
    __device__ A operator()(std::int64_t chunk, std::int64_t column) const {
        const std::int64_t begin = chunk * chunk_rows, next = begin + chunk_rows;
        const std::int64_t end = next < rows ? next : rows;
        A lanes[kRowLanes]{};
        for (std::int64_t row = begin; row < end; row += kRowLanes)
#pragma unroll
            for (int i = 0; i < kRowLanes; ++i)
                if (row + i < end) lanes[i] += partial[(row + i) * columns + column];
        A sum = lanes[0];
#pragma unroll
        for (int i = 1; i < kRowLanes; ++i) sum += lanes[i];
        return sum;
    }
};

/// out[c] += the sum of sums(chunk, c), a ChunkSums or NestedChunkSums, over the chunks.
template <class A, class Sums>
void add_chunk_sums(Stream stream, const Sums& sums, std::int64_t chunks, std::int64_t columns, A* out) {
    if (chunks == 0) return;
    launch(add_chunks<A, Sums>, divide_up(columns, kColumnTile), kColumnTile * kChunkLanes,
           kColumnTile * kChunkLanes * sizeof(A), stream, sums, chunks, columns, out);
}

/// out[c] += the sum over all rows of value(row, c). `value` is a trivially copyable function object with a
/// __device__ call operator. partial: scratch of row_chunks(rows) x columns elements.
template <class A, class Value>
void add_column_sums(Stream stream, Value value, std::int64_t rows, std::int64_t columns, A* partial,
                     A* out) {
    const std::int64_t chunks = row_chunks(rows);
    if (chunks == 0) return;
    launch(sum_chunks<A, Value>, chunks * divide_up(columns, kColumnTile), kColumnTile * kRowLanes,
           kColumnTile * kRowLanes * sizeof(A), stream, value, rows, columns, divide_up(rows, chunks),
           partial);
    add_chunk_sums(stream, ChunkSums<A>{partial, columns}, chunks, columns, out);
}

}  // namespace maestro::kernels
