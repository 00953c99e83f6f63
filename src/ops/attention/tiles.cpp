#include "ops/attention/tiles.hpp"

#include <algorithm>

#include "backend/host_access.hpp"
#include "kernels/attention.hpp"

namespace maestro::ops {

namespace {

using List = std::vector<kernels::AttentionTile>;

List query_tiles(const VarlenMask& v, std::int32_t side) {
    List list;
    for (std::size_t s = 1; s < v.cu_seqlens_q.size(); ++s)
        for (std::int32_t begin = v.cu_seqlens_q[s - 1]; begin < v.cu_seqlens_q[s]; begin += side) {
            const std::int32_t count = std::min(side, v.cu_seqlens_q[s] - begin);
            const std::int32_t kv_limit = v.kv_limit[static_cast<std::size_t>(begin + count - 1)];
            list.push_back({.query = begin,
                            .queries = count,
                            .key = v.cu_seqlens_k[s - 1],
                            .keys = kv_limit,
                            .skipped = 0});
        }
    return list;
}

List key_tiles(const VarlenMask& v, std::int32_t side) {
    List list;
    for (std::size_t s = 1; s < v.cu_seqlens_q.size(); ++s) {
        const auto first = v.kv_limit.begin() + v.cu_seqlens_q[s - 1],
                   last = v.kv_limit.begin() + v.cu_seqlens_q[s];
        for (std::int32_t begin = v.cu_seqlens_k[s - 1]; begin < v.cu_seqlens_k[s]; begin += side) {
            const std::int32_t skipped = begin - v.cu_seqlens_k[s - 1];
            const auto query =
                static_cast<std::int32_t>(std::upper_bound(first, last, skipped) - v.kv_limit.begin());
            list.push_back({.query = query,
                            .queries = v.cu_seqlens_q[s] - query,
                            .key = begin,
                            .keys = std::min(side, v.cu_seqlens_k[s] - begin),
                            .skipped = skipped});
        }
    }
    return list;
}

/// Copies the tiles to the device, those with most work first, so that no large tile starts last and runs
/// alone.
Tensor tiles_to_device(backend::Backend& b, List list, backend::Arena& scratch) {
    std::stable_sort(list.begin(), list.end(), [](const auto& x, const auto& y) {
        return std::int64_t{x.queries} * x.keys > std::int64_t{y.queries} * y.keys;
    });
    std::vector<std::int32_t> flat;
    flat.reserve(5 * list.size());
    for (const kernels::AttentionTile& t : list)
        flat.insert(flat.end(), {t.query, t.queries, t.key, t.keys, t.skipped});
    return backend::to_device(b, flat, scratch);
}

}  // namespace

AttentionTiles attention_tiles(backend::Backend& b, const VarlenMask& mask, DType type, bool backward,
                               backend::Arena& scratch) {
    if (b.shares_memory()) return {};
    const auto side = static_cast<std::int32_t>(kernels::attention_tile_size(type));
    return {tiles_to_device(b, query_tiles(mask, side), scratch),
            backward ? tiles_to_device(b, key_tiles(mask, side), scratch) : Tensor{},
            backend::to_device(b, mask.kv_limit, scratch)};
}

}  // namespace maestro::ops
