#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/device/score_tile.cuh"

namespace maestro::kernels {

namespace {

constexpr int kTermThreads = 256;

/// shared[row, head] = dout . out, the softmax's shared term. A warp takes a head of a row.
template <class T, int N>
__global__ void __launch_bounds__(kTermThreads)
    shared_terms(const T* dout, const T* out, Accumulate<T>* shared, std::int64_t all, int dim) {
    using A = Accumulate<T>;
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kTermThreads + threadIdx.x) / kWarp;
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
    sum = over_warp(sum, Sum{});
    if (lane == 0) shared[at] = sum;
}

/// What both gradients read.
template <class T>
struct Inputs {
    HeadArray<const T> dout, q, k, values;
    const Accumulate<T>*lse, *shared;
    const std::int32_t* kv_limit;
    int heads, group;
    Accumulate<T> scale;  ///< of scores
};

/// What the scores of a query turn into.
template <class A>
struct Query {
    A total, shared;
    int end;  ///< of the keys that it sees

    template <class T>
    __device__ __forceinline__ Query(const Inputs<T>& in, int row, int rows, std::int64_t token, int head,
                                     int first_key) {
        const bool here = row < rows;
        const std::int64_t at = (token + row) * in.heads + head;
        total = here ? in.lse[at] * kLog2E<A> : A(0);
        shared = here ? in.shared[at] : A(0);
        end = here ? in.kv_limit[token + row] - first_key : 0;
    }
    /// Of a key: its score becomes its weight, the weight's gradient that of the score.
    __device__ __forceinline__ void turn(int key, A scale, A& score, A& gradient) const {
        score = key < end ? exp2(score * (scale * kLog2E<A>)-total) : A(0);
        gradient = key < end ? score * (gradient - shared) : A(0);
    }
};

/// A block takes a tile of a head's queries.
template <class T, class O, int Dim>
__global__ void __launch_bounds__(256, Dim < 256 ? 2 : 1)
    query_gradient(Inputs<T> in, const AttentionTile* tiles, HeadArray<O> dq) {
    using A = Accumulate<T>;
    using Tile = ScoreTile<A, Dim>;
    constexpr int kEach = Tile::kEach, kSide = Tile::kSide;
    const Tile block;
    const AttentionTile tile = tiles[blockIdx.x / static_cast<unsigned>(in.heads)];
    const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(in.heads));
    A sums[kEach][Tile::kColumns] = {};
    for (int begin = 0; begin < tile.keys; begin += kSide) {
        const std::int64_t key = static_cast<std::int64_t>(tile.key) + begin;
        const int keys = min(kSide, tile.keys - begin), kv_head = head / in.group;
        const HeadRows<const T> key_rows = in.k.rows(key, kv_head, keys);
        A score[kEach][kEach], gradient[kEach][kEach];
        block.scores(in.q.rows(tile.query, head, tile.queries), key_rows, score);
        block.scores(in.dout.rows(tile.query, head, tile.queries), in.values.rows(key, kv_head, keys),
                     gradient);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const Query<A> query(in, block.first + i, tile.queries, tile.query, head, begin);
#pragma unroll
            for (int j = 0; j < kEach; ++j)
                query.turn(block.x + 16 * j, in.scale, score[i][j], gradient[i][j]);
        }
        block.keep(gradient);
        block.mix(key_rows, sums);
    }
    const HeadRows<O> results = dq.rows(tile.query, head, tile.queries);
#pragma unroll
    for (int i = 0; i < kEach; ++i) block.write(sums[i], in.scale, results, i);
}

/// A block takes a tile of a head's keys and all queries of all heads that share it, so that one alone adds
/// to a gradient.
template <class T, class O, int Dim>
__global__ void __launch_bounds__(256, Dim > 64 ? 1 : 2)
    key_gradient(Inputs<T> in, const AttentionTile* tiles, int kv_heads, HeadArray<O> dk,
                 HeadArray<O> dvalues) {
    using A = Accumulate<T>;
    using Tile = ScoreTile<A, Dim>;
    constexpr int kEach = Tile::kEach, kSide = Tile::kSide;
    const Tile block;
    const AttentionTile tile = tiles[blockIdx.x / static_cast<unsigned>(kv_heads)];
    const int kv_head = static_cast<int>(blockIdx.x % static_cast<unsigned>(kv_heads));
    const HeadRows<const T> keys = in.k.rows(tile.key, kv_head, tile.keys),
                            values = in.values.rows(tile.key, kv_head, tile.keys);
    A key_sums[kEach][Tile::kColumns] = {}, value_sums[kEach][Tile::kColumns] = {};
    for (int head = kv_head * in.group; head < (kv_head + 1) * in.group; ++head)
        for (int begin = 0; begin < tile.queries; begin += kSide) {
            const std::int64_t token = static_cast<std::int64_t>(tile.query) + begin;
            const int count = min(kSide, tile.queries - begin);
            const HeadRows<const T> queries = in.q.rows(token, head, count),
                                    douts = in.dout.rows(token, head, count);
            A score[kEach][kEach], gradient[kEach][kEach];
            block.scores(keys, queries, score);
            block.scores(values, douts, gradient);
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const Query<A> query(in, block.x + 16 * j, count, token, head, tile.skipped);
#pragma unroll
                for (int i = 0; i < kEach; ++i)
                    query.turn(block.first + i, in.scale, score[i][j], gradient[i][j]);
            }
            block.keep(score);
            block.mix(douts, value_sums);
            block.keep(gradient);
            block.mix(queries, key_sums);
        }
    const HeadRows<O> key_results = dk.rows(tile.key, kv_head, tile.keys),
                      value_results = dvalues.rows(tile.key, kv_head, tile.keys);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        block.write(key_sums[i], in.scale, key_results, i);
        block.write(value_sums[i], A(1), value_results, i);
    }
}

}  // namespace

void attention_backward(Stream stream, const Array& dout, const Array& out, const Array& q, const Array& k,
                        const Array& values, const Array& lse, const Array& query_tiles,
                        const Array& key_tiles, const Array& kv_limit, const Array& dq, const Array& dk,
                        const Array& dvalues, const Array& shared) {
    const std::int64_t heads = lse.columns, dim = q.columns / heads, kv_heads = k.columns / dim;
    const auto start = [&]<class T, class O>(T, O) {
        using A = Accumulate<T>;
        const Inputs<T> in{HeadArray<const T>(dout, q.columns, heads, dim),
                           HeadArray<const T>(q, q.columns, heads, dim),
                           HeadArray<const T>(k, k.columns, kv_heads, dim),
                           HeadArray<const T>(values, values.columns, kv_heads, dim),
                           lse.as<A>(),
                           shared.as<A>(),
                           kv_limit.as<std::int32_t>(),
                           static_cast<int>(heads),
                           static_cast<int>(heads / kv_heads),
                           static_cast<A>(1 / std::sqrt(static_cast<double>(dim)))};
        by_pack<T>(
            [&]<int N>() {
                launch(shared_terms<T, N>, divide_up(q.rows * heads, kTermThreads / kWarp), kTermThreads, 0,
                       stream, dout.as<T>(), out.as<T>(), shared.as<A>(), q.rows * heads, dim);
            },
            dim, dout.as<T>(), out.as<T>());
        by_head_size(dim, [&]<int Dim>() {
            using Tile = ScoreTile<A, Dim>;
            static_assert(Tile::kSide == attention_tile_side(dtype_of<T>()));
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
