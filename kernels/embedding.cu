#include "kernels/embedding.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"
#include "kernels/radix_sort.hpp"

namespace maestro::kernels {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// A warp handles one id and 32 * N columns. Of the rows with one id, which are adjacent in `order`, the warp
/// of the first row adds up all of them, in their order. The warps of the other rows return at once.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    add_rows(const std::int32_t* ids, const std::int32_t* order, const T* dy, Accumulate<T>* dtable,
             std::int64_t rows, std::int64_t columns, std::int64_t slices) {
    using A = Accumulate<T>;
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
    const std::int64_t first = item / slices, column = (item % slices * kWarp + lane) * N;
    if (first >= rows) return;
    const std::int32_t id = ids[order[first]];
    if (id < 0 || (first > 0 && ids[order[first - 1]] == id)) return;
    const bool inside = column < columns;
    A* const target = dtable + id * columns + column;
    const T* const from = dy + column;
    A sum[N] = {};
    if (inside) load<A, N>(target, sum);
    // The lanes read 32 places of `order` at a time, until one of them holds another id. Lanes beyond the
    // last column stay in the loop, because the ballot and the shuffles need the whole warp.
    for (std::int64_t begin = first, found = kWarp; found == kWarp; begin += kWarp) {
        const std::int32_t row = begin + lane < rows ? order[begin + lane] : -1;
        found = __popc(__ballot_sync(0xffffffffu, row >= 0 && ids[row] == id));
#pragma unroll 4
        for (int i = 0; i < found; ++i) {
            const std::int64_t next = __shfl_sync(0xffffffffu, row, i);
            if (!inside) continue;
            A value[N];
            load<T, N>(from + next * columns, value);
#pragma unroll
            for (int n = 0; n < N; ++n) sum[n] += value[n];
        }
    }
    if (inside) store<A, N>(sum, target);
}

}  // namespace

void embedding_backward(Stream stream, const Array& ids, const Array& dy, const Array& dtable,
                        const Array& scratch) {
    const std::int64_t rows = dy.rows, columns = dy.columns;
    if (rows == 0) return;
    const std::int32_t* const order =
        sort_rows(stream, RadixSort(rows, dtable.rows), ids.as<std::int32_t>(), scratch.as<std::int32_t>());
    by_type(dy.dtype, [&]<class T>(T) {
        by_vector_size<T>(
            [&]<int N>() {
                const std::int64_t slices = divide_up(columns, kWarp * N);
                launch(add_rows<T, N>, divide_up(rows * slices, kWarps), kThreads, 0, stream,
                       ids.as<std::int32_t>(), order, dy.as<T>(), dtable.as<Accumulate<T>>(), rows, columns,
                       slices);
            },
            columns, dy.as<T>(), dtable.as<Accumulate<T>>());
    });
}

}  // namespace maestro::kernels
