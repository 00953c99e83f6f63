// ops/attention/attention.hpp on a GPU, for every type and head size: heads of at most 256 elements.
#pragma once

#include <cstdint>

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// What a block takes: the queries [query, query + queries) and the keys [key, key + keys) of one sequence,
/// whose first `skipped` keys are not among these. Query t sees those whose number is below
/// kv_limit[t] - skipped.
struct AttentionTile {
    std::int32_t query, queries, key, keys, skipped;
};
static_assert(sizeof(AttentionTile) == 5 * sizeof(std::int32_t));

/// Of a list of them.
inline std::int64_t attention_tiles(const Array& list) {
    return list.size() / 5;
}

/// Queries or keys of a tile, at most.
constexpr std::int64_t attention_tile_side(DType type) {
    return type == DType::f64 ? 32 : 64;
}

/// query_tiles (int32, five to a tile): all queries, in tiles of at most attention_tile_side(type of q), with
/// all keys that their last one sees. kv_limit: by query.
void attention(Stream stream, const Array& q, const Array& k, const Array& values, const Array& query_tiles,
               const Array& kv_limit, const Array& out, const Array& lse);
/// key_tiles: all keys, in tiles of at most that side, with the queries that see their first one.
/// shared[Tq, H], of the accumulation type, is scratch.
void attention_backward(Stream stream, const Array& dout, const Array& out, const Array& q, const Array& k,
                        const Array& values, const Array& lse, const Array& query_tiles,
                        const Array& key_tiles, const Array& kv_limit, const Array& dq, const Array& dk,
                        const Array& dvalues, const Array& shared);

}  // namespace maestro::kernels
