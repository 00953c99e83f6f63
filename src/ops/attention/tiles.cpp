#include "ops/attention/tiles.hpp"

#include <algorithm>

#include "backend/host_access.hpp"
#include "kernels/attention.hpp"

namespace maestro::ops {

namespace {

using List = std::vector<kernels::AttentionTile>;

List query_tiles(const Visible& v, std::int32_t side) {
    List list;
    for (std::size_t s = 1; s < v.queries.size(); ++s)
        for (std::int32_t begin = v.queries[s - 1]; begin < v.queries[s]; begin += side) {
            const std::int32_t count = std::min(side, v.queries[s] - begin);
            const std::int32_t seen = v.seen[static_cast<std::size_t>(begin + count - 1)];
            list.push_back(
                {.query = begin, .queries = count, .key = v.keys[s - 1], .keys = seen, .skipped = 0});
        }
    return list;
}

List key_tiles(const Visible& v, std::int32_t side) {
    List list;
    for (std::size_t s = 1; s < v.queries.size(); ++s) {
        const auto first = v.seen.begin() + v.queries[s - 1], last = v.seen.begin() + v.queries[s];
        for (std::int32_t begin = v.keys[s - 1]; begin < v.keys[s]; begin += side) {
            const std::int32_t skipped = begin - v.keys[s - 1];
            const auto query =
                static_cast<std::int32_t>(std::upper_bound(first, last, skipped) - v.seen.begin());
            list.push_back({.query = query,
                            .queries = v.queries[s] - query,
                            .key = begin,
                            .keys = std::min(side, v.keys[s] - begin),
                            .skipped = skipped});
        }
    }
    return list;
}

/// Those with most to do first: what starts last must not run alone for long.
Tensor given_tiles(backend::Backend& b, List list, backend::Arena& scratch) {
    std::stable_sort(list.begin(), list.end(), [](const auto& x, const auto& y) {
        return std::int64_t{x.queries} * x.keys > std::int64_t{y.queries} * y.keys;
    });
    std::vector<std::int32_t> flat;
    flat.reserve(5 * list.size());
    for (const kernels::AttentionTile& t : list)
        flat.insert(flat.end(), {t.query, t.queries, t.key, t.keys, t.skipped});
    return backend::given(b, flat, scratch);
}

}  // namespace

AttentionTiles attention_tiles(backend::Backend& b, const Visible& visible, DType type, bool backward,
                               backend::Arena& scratch) {
    if (b.shares_memory()) return {};
    const auto side = static_cast<std::int32_t>(kernels::attention_tile_side(type));
    return {given_tiles(b, query_tiles(visible, side), scratch),
            backward ? given_tiles(b, key_tiles(visible, side), scratch) : Tensor{},
            backend::given(b, visible.seen, scratch)};
}

}  // namespace maestro::ops
