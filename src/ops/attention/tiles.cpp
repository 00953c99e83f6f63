#include "ops/attention/tiles.hpp"

#include <algorithm>

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

/// Appends the tiles, those with most work first, so that no large tile starts last and runs alone. Returns
/// the number of words appended.
std::int64_t append(List list, std::vector<std::int32_t>& words) {
    std::stable_sort(list.begin(), list.end(), [](const auto& x, const auto& y) {
        return std::int64_t{x.queries} * x.keys > std::int64_t{y.queries} * y.keys;
    });
    words.reserve(words.size() + 5 * list.size());
    for (const kernels::AttentionTile& t : list)
        words.insert(words.end(), {t.query, t.queries, t.key, t.keys, t.skipped});
    return static_cast<std::int64_t>(5 * list.size());
}

}  // namespace

AttentionTiles attention_tiles(const VarlenMask& mask, DType type, bool backward, const Upload& upload) {
    const auto side = static_cast<std::int32_t>(kernels::attention_tile_size(type));
    std::vector<std::int32_t> words = mask.kv_limit;
    const auto limits = static_cast<std::int64_t>(words.size());
    const std::int64_t queries = append(query_tiles(mask, side), words),
                       keys = backward ? append(key_tiles(mask, side), words) : 0;
    const Tensor all = upload(words);
    return {all.slice(limits, limits + queries),
            backward ? all.slice(limits + queries, limits + queries + keys) : Tensor{}, all.slice(0, limits)};
}

}  // namespace maestro::ops
