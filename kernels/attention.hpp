// Varlen attention (ops/attention/attention.hpp) on a GPU by FlashAttention-2, for all types and for heads of
// at most 256 elements.
#pragma once

#include <cstdint>

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// The work of a block: the queries [query, query + queries) and the keys [key, key + keys) of one sequence,
/// whose first `skipped` keys come before `key`. Query t attends to the keys with an index below
/// kv_limit[t] - skipped in the tile.
struct AttentionTile {
    std::int32_t query, queries, key, keys, skipped;
};
static_assert(sizeof(AttentionTile) == 5 * sizeof(std::int32_t));

/// The number of tiles in a list.
inline std::int64_t attention_tiles(const Array& list) {
    return list.size() / 5;
}

/// The largest number of queries, or keys, of a tile.
constexpr std::int64_t attention_tile_size(DType type) {
    return type == DType::f64 ? 32 : 64;
}

/// query_tiles (AttentionTile[] as i32): covers all queries in tiles of at most attention_tile_size(type of
/// q) queries, each with all keys that its last query attends to. kv_limit (i32[Tq]): the end of the keys
/// that a query attends to, within its sequence. lse[Tq, H]: the log-sum-exp of each query's scaled scores.
void attention(Stream stream, const Array& q, const Array& k, const Array& values, const Array& query_tiles,
               const Array& kv_limit, const Array& out, const Array& lse);
/// key_tiles: covers all keys in tiles of at most attention_tile_size() keys, each with the queries that
/// attend to its first key. delta[Tq, H], of the accumulation type, is scratch.
void attention_backward(Stream stream, const Array& dout, const Array& out, const Array& q, const Array& k,
                        const Array& values, const Array& lse, const Array& query_tiles,
                        const Array& key_tiles, const Array& kv_limit, const Array& dq, const Array& dk,
                        const Array& dvalues, const Array& delta);

}  // namespace maestro::kernels
