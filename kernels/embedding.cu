#include "kernels/embedding.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/number.cuh"

namespace maestro::kernels {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTile = 1024, kPart = kTile / kWarps;  // ids in shared memory, and each warp's part of them
constexpr std::int32_t kLast = 0x7fffffff;           // no id is as large

/// How many of this warp's part of the tile `precedes` is true of.
template <class Precedes>
__device__ __forceinline__ int count(const std::int32_t* part, Precedes precedes) {
    int found = 0;
#pragma unroll 4
    for (int i = 0; i < kPart; i += 4) {
        const int4 ids = *reinterpret_cast<const int4*>(part + i);
        found +=
            precedes(ids.x, i) + precedes(ids.y, i + 1) + precedes(ids.z, i + 2) + precedes(ids.w, i + 3);
    }
    return found;
}

/// order: the rows by id, and those of an id as they come. A block finds the places of 32 rows by counting
/// the ids that go before theirs: a row for each lane, a part of each tile for each warp.
__global__ void __launch_bounds__(kThreads)
    sort_rows(const std::int32_t* ids, std::int64_t rows, std::int32_t* order) {
    std::int32_t* const tile = shared_memory<std::int32_t>();
    std::int32_t* const counts = tile + kTile;
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWarp, row = first + lane;
    const std::int32_t id = row < rows ? ids[row] : kLast;
    const std::int32_t* const part = tile + warp * kPart;
    int before = 0;
    for (std::int64_t begin = 0; begin < rows; begin += kTile) {
        for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kThreads)
            tile[i] = begin + i < rows ? ids[begin + i] : kLast;
        __syncthreads();
        const std::int64_t at = begin + warp * kPart;
        if (begin + kTile <= first)
            before += count(part, [=](std::int32_t other, int) { return other <= id ? 1 : 0; });
        else if (begin > first)
            before += count(part, [=](std::int32_t other, int) { return other < id ? 1 : 0; });
        else
            before += count(part, [=](std::int32_t other, int i) {
                return other < id || (other == id && at + i < row) ? 1 : 0;
            });
        __syncthreads();
    }
    counts[threadIdx.x] = before;
    __syncthreads();
    if (warp > 0 || row >= rows) return;
    for (int i = 1; i < kWarps; ++i) before += counts[i * kWarp + lane];
    order[before] = static_cast<std::int32_t>(row);
}

/// A warp takes an id and 32 * N columns: the first row of the id finds the others behind it in `order` and
/// adds them as they come; the warps of the others have nothing to do.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    add_rows(const std::int32_t* ids, const std::int32_t* order, const T* dy, Accumulate<T>* dtable,
             std::int64_t rows, std::int64_t columns, std::int64_t pieces) {
    using A = Accumulate<T>;
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
    const std::int64_t first = item / pieces, column = (item % pieces * kWarp + lane) * N;
    if (first >= rows) return;
    const std::int32_t id = ids[order[first]];
    if (id < 0 || (first > 0 && ids[order[first - 1]] == id)) return;
    const bool inside = column < columns;
    A* const target = dtable + id * columns + column;
    const T* const from = dy + column;
    A sum[N] = {};
    if (inside) load<A, N>(target, sum);
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
                        const Array& order) {
    const std::int64_t rows = dy.rows, columns = dy.columns;
    launch(sort_rows, divide_up(rows, kWarp), kThreads, (kTile + kThreads) * sizeof(std::int32_t), stream,
           ids.as<std::int32_t>(), rows, order.as<std::int32_t>());
    by_type(dy.dtype, [&]<class T>(T) {
        by_pack<T>(
            [&]<int N>() {
                const std::int64_t pieces = divide_up(columns, kWarp * N);
                launch(add_rows<T, N>, divide_up(rows * pieces, kWarps), kThreads, 0, stream,
                       ids.as<std::int32_t>(), order.as<std::int32_t>(), dy.as<T>(),
                       dtable.as<Accumulate<T>>(), rows, columns, pieces);
            },
            columns, dy.as<T>(), dtable.as<Accumulate<T>>());
    });
}

}  // namespace maestro::kernels
