// The gradient of a table of which rows were read by index: sums of all rows that belong to one row of the
// table, in a fixed order.
#pragma once

#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

inline constexpr int kSortedRowThreads = 256, kSortedRowWarps = kSortedRowThreads / kWarp;

/// dtable[key of item] += row(item). A warp handles one item and 32 * N columns. Of the items with one key,
/// which are adjacent in `order`, the warp of the first adds up all of them, in their order. The warps of the
/// other items return at once. Items with a negative key are skipped. row.operator()<N>(item, column, value)
/// loads N elements.
template <class A, int N, class Row>
__global__ void __launch_bounds__(kSortedRowThreads)
    add_rows(const std::int32_t* keys, const std::int32_t* order, Row row, A* dtable, std::int64_t items,
             std::int64_t columns, std::int64_t slices) {
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * kSortedRowWarps + warp;
    const std::int64_t first = place / slices, column = (place % slices * kWarp + lane) * N;
    if (first >= items) return;
    const std::int32_t key = keys[order[first]];
    if (key < 0 || (first > 0 && keys[order[first - 1]] == key)) return;
    const bool inside = column < columns;
    A* const target = dtable + key * columns + column;
    A sum[N] = {};
    if (inside) load<A, N>(target, sum);
    // The lanes read 32 places of `order` at a time, until one of them holds another key. Lanes beyond the
    // last column stay in the loop, because the ballot and the shuffles need the whole warp.
    for (std::int64_t begin = first, found = kWarp; found == kWarp; begin += kWarp) {
        const std::int32_t item = begin + lane < items ? order[begin + lane] : -1;
        found = __popc(__ballot_sync(0xffffffffu, item >= 0 && keys[item] == key));
#pragma unroll 4
        for (int i = 0; i < found; ++i) {
            const std::int64_t next = __shfl_sync(0xffffffffu, item, i);
            if (!inside) continue;
            A value[N];
            row.template operator()<N>(next, column, value);
#pragma unroll
            for (int n = 0; n < N; ++n) sum[n] += value[n];
        }
    }
    if (inside) store<A, N>(sum, target);
}

/// order: the items [0, items) sorted by their keys.
template <int N, class A, class Row>
void add_sorted_rows(Stream stream, const std::int32_t* keys, const std::int32_t* order, const Row& row,
                     A* dtable, std::int64_t items, std::int64_t columns) {
    const std::int64_t slices = divide_up(columns, kWarp * N);
    launch(add_rows<A, N, Row>, divide_up(items * slices, kSortedRowWarps), kSortedRowThreads, 0, stream,
           keys, order, row, dtable, items, columns, slices);
}

}  // namespace maestro::kernels
