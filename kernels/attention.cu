#include "kernels/attention.hpp"

#include <cmath>
#include <limits>

#include "kernels/device/launch.cuh"
#include "kernels/device/score_tile.cuh"

namespace maestro::kernels {

namespace {

/// A block takes a tile of a head's queries. The largest score so far, the sum and the result, in its terms,
/// are mended as keys go by (FlashAttention-2).
template <class T, class O, int Dim>
__global__ void __launch_bounds__(256, Dim < 256 ? 2 : 1)
    forward(HeadArray<const T> q, HeadArray<const T> k, HeadArray<const T> values, const AttentionTile* tiles,
            const std::int32_t* kv_limit, HeadArray<O> out, Accumulate<T>* lse, int heads, int group,
            Accumulate<T> scale) {
    using A = Accumulate<T>;
    using Tile = ScoreTile<A, Dim>;
    constexpr int kEach = Tile::kEach, kSide = Tile::kSide;
    constexpr A kNothing = -std::numeric_limits<A>::infinity();
    const Tile block;
    const AttentionTile tile = tiles[blockIdx.x / static_cast<unsigned>(heads)];
    const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(heads));
    const HeadRows<const T> queries = q.rows(tile.query, head, tile.queries);
    A mixed[kEach][Tile::kColumns] = {}, top[kEach], sum[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        top[i] = kNothing;
        sum[i] = 0;
    }
    for (int begin = 0; begin < tile.keys; begin += kSide) {
        const int keys = min(kSide, tile.keys - begin);
        const std::int64_t key = static_cast<std::int64_t>(tile.key) + begin;
        A score[kEach][kEach];
        block.scores(queries, k.rows(key, head / group, keys), score);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int row = block.first + i;
            // Read again and again, rather than kept in a register that results need.
            const int end =
                row < tile.queries ? kv_limit[static_cast<std::int64_t>(tile.query) + row] - begin : 0;
            A highest = top[i];
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                score[i][j] = block.x + 16 * j < end ? score[i][j] * scale : kNothing;
                highest = Max{}(highest, score[i][j]);
            }
            highest = Tile::over_row(highest, Max{});
            // Also where nothing was kv_limit yet, whose difference would not be a number.
            const A rescale = highest == top[i] ? A(1) : exp2(top[i] - highest);
            top[i] = highest;
            sum[i] *= rescale;
#pragma unroll
            for (int c = 0; c < Tile::kColumns; ++c) mixed[i][c] *= rescale;
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                score[i][j] = block.x + 16 * j < end ? exp2(score[i][j] - highest) : A(0);
                sum[i] += score[i][j];
            }
        }
        block.keep(score);
        block.mix(values.rows(key, head / group, keys), mixed);
    }
    const HeadRows<O> results = out.rows(tile.query, head, tile.queries);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const A total = Tile::over_row(sum[i], Sum{});
        block.write(mixed[i], total == A(0) ? A(0) : A(1) / total, results, i);
        const int row = block.first + i;
        if (block.x == 0 && row < tile.queries)
            lse[(static_cast<std::int64_t>(tile.query) + row) * heads + head] =
                (top[i] + log2(total)) * kLog2<A>;
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
            static_assert(Tile::kSide == attention_tile_side(dtype_of<T>()));
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
