#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/device/score_tile.cuh"

namespace maestro::kernels {

namespace {

constexpr int kDeltaThreads = 256;

/// delta[row, head] = dout . out, which the gradients of all scores of a softmax row have in common. A warp
/// handles one head of one row.
template <class T, int N>
__global__ void __launch_bounds__(kDeltaThreads)
    compute_delta(const T* dout, const T* out, Accumulate<T>* delta, std::int64_t all, int dim) {
    using A = Accumulate<T>;
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kWarp;
    if (at >= all) return;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    A sum = 0;
    for (int c = lane * N; c < dim; c += kWarp * N) {
        A gradient[N], value[N];
        load<T, N>(dout + at * dim + c, gradient);
        load<T, N>(out + at * dim + c, value);
#pragma unroll
        for (int i = 0; i < N; ++i) sum += gradient[i] * value[i];
    }
    sum = warp_reduce(sum, Sum{});
    if (lane == 0) delta[at] = sum;
}

/// Inputs of both gradient kernels.
template <class T>
struct Inputs {
    HeadArray<const T> dout, q, k, values;
    const Accumulate<T>*lse, *delta;
    const std::int32_t* kv_limit;
    int heads, group;
    Accumulate<T> scale;  ///< of the scores
};

/// Softmax statistics and mask of one query.
template <class A>
struct Query {
    A lse, delta;  ///< lse in units of log 2
    int end;       ///< end of the keys that the query attends to

    template <class T>
    __device__ __forceinline__ Query(const Inputs<T>& in, int row, int rows, std::int64_t token, int head,
                                     int first_key) {
        const bool valid = row < rows;
        const std::int64_t at = (token + row) * in.heads + head;
        lse = valid ? in.lse[at] * kLog2E<A> : A(0);
        delta = valid ? in.delta[at] : A(0);
        end = valid ? in.kv_limit[token + row] - first_key : 0;
    }
    /// Replaces a key's score with its attention weight, and the weight's gradient with the score's gradient.
    __device__ __forceinline__ void differentiate(int key, A scale, A& score, A& gradient) const {
        score = key < end ? exp2(score * (scale * kLog2E<A>)-lse) : A(0);
        gradient = key < end ? score * (gradient - delta) : A(0);
    }
};

/// dq: a block handles one tile of queries of one head.
template <class T, class O, int Dim>
__global__ void __launch_bounds__(256, Dim < 256 ? 2 : 1)
    query_gradient(Inputs<T> in, const AttentionTile* tiles, HeadArray<O> dq) {
    using A = Accumulate<T>;
    using Tile = ScoreTile<A, Dim>;
    constexpr int kPerThread = Tile::kPerThread, kTileSize = Tile::kTileSize;
    const Tile tile_ops;
    const AttentionTile tile = tiles[blockIdx.x / static_cast<unsigned>(in.heads)];
    const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(in.heads));
    A sums[kPerThread][Tile::kColumns] = {};
    for (int begin = 0; begin < tile.keys; begin += kTileSize) {
        const std::int64_t key = static_cast<std::int64_t>(tile.key) + begin;
        const int keys = min(kTileSize, tile.keys - begin), kv_head = head / in.group;
        const HeadRows<const T> key_rows = in.k.rows(key, kv_head, keys);
        A score[kPerThread][kPerThread], gradient[kPerThread][kPerThread];
        tile_ops.scores(in.q.rows(tile.query, head, tile.queries), key_rows, score);
        tile_ops.scores(in.dout.rows(tile.query, head, tile.queries), in.values.rows(key, kv_head, keys),
                        gradient);
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            const Query<A> query(in, tile_ops.first + i, tile.queries, tile.query, head, begin);
#pragma unroll
            for (int j = 0; j < kPerThread; ++j)
                query.differentiate(tile_ops.x + 16 * j, in.scale, score[i][j], gradient[i][j]);
        }
        tile_ops.store_weights(gradient);
        tile_ops.multiply_rows(key_rows, sums);
    }
    const HeadRows<O> results = dq.rows(tile.query, head, tile.queries);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) tile_ops.store_row(sums[i], in.scale, results, i);
}

/// dk and dv: a block handles one tile of keys of one kv head, with all queries of all heads that share it
/// (GQA). So only one block adds to a gradient, and no atomics are needed, whose order would vary.
template <class T, class O, int Dim>
__global__ void __launch_bounds__(256, Dim > 64 ? 1 : 2)
    key_gradient(Inputs<T> in, const AttentionTile* tiles, int kv_heads, HeadArray<O> dk,
                 HeadArray<O> dvalues) {
    using A = Accumulate<T>;
    using Tile = ScoreTile<A, Dim>;
    constexpr int kPerThread = Tile::kPerThread, kTileSize = Tile::kTileSize;
    const Tile tile_ops;
    const AttentionTile tile = tiles[blockIdx.x / static_cast<unsigned>(kv_heads)];
    const int kv_head = static_cast<int>(blockIdx.x % static_cast<unsigned>(kv_heads));
    const HeadRows<const T> keys = in.k.rows(tile.key, kv_head, tile.keys),
                            values = in.values.rows(tile.key, kv_head, tile.keys);
    A key_sums[kPerThread][Tile::kColumns] = {}, value_sums[kPerThread][Tile::kColumns] = {};
    for (int head = kv_head * in.group; head < (kv_head + 1) * in.group; ++head)
        for (int begin = 0; begin < tile.queries; begin += kTileSize) {
            const std::int64_t token = static_cast<std::int64_t>(tile.query) + begin;
            const int count = min(kTileSize, tile.queries - begin);
            const HeadRows<const T> queries = in.q.rows(token, head, count),
                                    douts = in.dout.rows(token, head, count);
            A score[kPerThread][kPerThread], gradient[kPerThread][kPerThread];
            tile_ops.scores(keys, queries, score);
            tile_ops.scores(values, douts, gradient);
#pragma unroll
            for (int j = 0; j < kPerThread; ++j) {
                const Query<A> query(in, tile_ops.x + 16 * j, count, token, head, tile.skipped);
#pragma unroll
                for (int i = 0; i < kPerThread; ++i)
                    query.differentiate(tile_ops.first + i, in.scale, score[i][j], gradient[i][j]);
            }
            tile_ops.store_weights(score);
            tile_ops.multiply_rows(douts, value_sums);
            tile_ops.store_weights(gradient);
            tile_ops.multiply_rows(queries, key_sums);
        }
    const HeadRows<O> key_results = dk.rows(tile.key, kv_head, tile.keys),
                      value_results = dvalues.rows(tile.key, kv_head, tile.keys);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
        tile_ops.store_row(key_sums[i], in.scale, key_results, i);
        tile_ops.store_row(value_sums[i], A(1), value_results, i);
    }
}

}  // namespace

void attention_backward(Stream stream, const Array& dout, const Array& out, const Array& q, const Array& k,
                        const Array& values, const Array& lse, const Array& query_tiles,
                        const Array& key_tiles, const Array& kv_limit, const Array& dq, const Array& dk,
                        const Array& dvalues, const Array& delta) {
    const std::int64_t heads = lse.columns, dim = q.columns / heads, kv_heads = k.columns / dim;
    const auto start = [&]<class T, class O>(T, O) {
        using A = Accumulate<T>;
        const Inputs<T> in{HeadArray<const T>(dout, q.columns, heads, dim),
                           HeadArray<const T>(q, q.columns, heads, dim),
                           HeadArray<const T>(k, k.columns, kv_heads, dim),
                           HeadArray<const T>(values, values.columns, kv_heads, dim),
                           lse.as<A>(),
                           delta.as<A>(),
                           kv_limit.as<std::int32_t>(),
                           static_cast<int>(heads),
                           static_cast<int>(heads / kv_heads),
                           static_cast<A>(1 / std::sqrt(static_cast<double>(dim)))};
        by_vector_size<T>(
            [&]<int N>() {
                launch(compute_delta<T, N>, divide_up(q.rows * heads, kDeltaThreads / kWarp), kDeltaThreads,
                       0, stream, dout.as<T>(), out.as<T>(), delta.as<A>(), q.rows * heads, dim);
            },
            dim, dout.as<T>(), out.as<T>());
        by_head_size(dim, [&]<int Dim>() {
            using Tile = ScoreTile<A, Dim>;
            static_assert(Tile::kTileSize == attention_tile_size(dtype_of<T>()));
            launch(query_gradient<T, O, Dim>, attention_tiles(query_tiles) * heads, Tile::kThreads,
                   Tile::kShared, stream, in, query_tiles.as<AttentionTile>(),
                   HeadArray<O>(dq, q.columns, heads, dim));
            launch(key_gradient<T, O, Dim>, attention_tiles(key_tiles) * kv_heads, Tile::kThreads,
                   Tile::kShared, stream, in, key_tiles.as<AttentionTile>(), kv_heads,
                   HeadArray<O>(dk, k.columns, kv_heads, dim),
                   HeadArray<O>(dvalues, dvalues.columns, kv_heads, dim));
        });
    };
    by_input_and_result(q.dtype, dq.dtype, start);
}

}  // namespace maestro::kernels
