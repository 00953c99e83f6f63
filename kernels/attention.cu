#include "kernels/attention.hpp"

#include <cmath>
#include <limits>

#include "kernels/device/launch.cuh"
#include "kernels/device/score_tile.cuh"

namespace maestro::kernels {

namespace {

/// FlashAttention-2, forward. A block computes the output of one tile of queries for one head. It iterates
/// over tiles of keys and keeps a running maximum and sum of exponentials per query. Where the maximum rises,
/// the sum and the unnormalized output are rescaled to it.
template <class T, class O, int Dim>
__global__ void __launch_bounds__(256, Dim < 256 ? 2 : 1)
    forward(HeadArray<const T> q, HeadArray<const T> k, HeadArray<const T> values, const AttentionTile* tiles,
            const std::int32_t* kv_limit, HeadArray<O> out, Accumulate<T>* lse, int heads, int group,
            Accumulate<T> scale) {
    using A = Accumulate<T>;
    using Tile = ScoreTile<A, Dim>;
    constexpr int kPerThread = Tile::kPerThread, kTileSize = Tile::kTileSize;
    constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();
    const Tile tile_ops;
    const AttentionTile tile = tiles[blockIdx.x / static_cast<unsigned>(heads)];
    const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(heads));
    const HeadRows<const T> queries = q.rows(tile.query, head, tile.queries);
    A output[kPerThread][Tile::kColumns] = {}, row_max[kPerThread], row_sum[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
        row_max[i] = kMinusInfinity;
        row_sum[i] = 0;
    }
    for (int begin = 0; begin < tile.keys; begin += kTileSize) {
        const int keys = min(kTileSize, tile.keys - begin);
        const std::int64_t key = static_cast<std::int64_t>(tile.key) + begin;
        A score[kPerThread][kPerThread];
        tile_ops.scores(queries, k.rows(key, head / group, keys), score);
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            const int row = tile_ops.first + i;
            // Loaded in every iteration: the registers are needed for the accumulators.
            const int end =
                row < tile.queries ? kv_limit[static_cast<std::int64_t>(tile.query) + row] - begin : 0;
            A new_max = row_max[i];
#pragma unroll
            for (int j = 0; j < kPerThread; ++j) {
                score[i][j] = tile_ops.x + 16 * j < end ? score[i][j] * scale : kMinusInfinity;
                new_max = Max{}(new_max, score[i][j]);
            }
            new_max = Tile::row_reduce(new_max, Max{});
            // Where no key was visible so far, both maxima are minus infinity and their difference would be
            // NaN.
            const A rescale = new_max == row_max[i] ? A(1) : exp2(row_max[i] - new_max);
            row_max[i] = new_max;
            row_sum[i] *= rescale;
#pragma unroll
            for (int c = 0; c < Tile::kColumns; ++c) output[i][c] *= rescale;
#pragma unroll
            for (int j = 0; j < kPerThread; ++j) {
                score[i][j] = tile_ops.x + 16 * j < end ? exp2(score[i][j] - new_max) : A(0);
                row_sum[i] += score[i][j];
            }
        }
        tile_ops.store_weights(score);
        tile_ops.multiply_rows(values.rows(key, head / group, keys), output);
    }
    const HeadRows<O> results = out.rows(tile.query, head, tile.queries);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
        const A total = Tile::row_reduce(row_sum[i], Sum{});
        tile_ops.store_row(output[i], total == A(0) ? A(0) : A(1) / total, results, i);
        const int row = tile_ops.first + i;
        if (tile_ops.x == 0 && row < tile.queries)
            lse[(static_cast<std::int64_t>(tile.query) + row) * heads + head] =
                (row_max[i] + log2(total)) * kLog2<A>;
    }
}

}  // namespace

void attention(Stream stream, const Array& q, const Array& k, const Array& values, const Array& query_tiles,
               const Array& kv_limit, const Array& out, const Array& lse) {
    const std::int64_t heads = lse.columns, dim = q.columns / heads, kv_heads = k.columns / dim;
    const auto start = [&]<class T, class O>(T, O) {
        using A = Accumulate<T>;
        by_head_size(dim, [&]<int Dim>() {
            using Tile = ScoreTile<A, Dim>;
            static_assert(Tile::kTileSize == attention_tile_size(dtype_of<T>()));
            launch(forward<T, O, Dim>, attention_tiles(query_tiles) * heads, Tile::kThreads, Tile::kShared,
                   stream, HeadArray<const T>(q, q.columns, heads, dim),
                   HeadArray<const T>(k, k.columns, kv_heads, dim),
                   HeadArray<const T>(values, values.columns, kv_heads, dim), query_tiles.as<AttentionTile>(),
                   kv_limit.as<std::int32_t>(), HeadArray<O>(out, q.columns, heads, dim), lse.as<A>(), heads,
                   heads / kv_heads, kLog2E<double> / std::sqrt(static_cast<double>(dim)));
        });
    };
    by_input_and_result(q.dtype, out.dtype, start);
}

}  // namespace maestro::kernels
