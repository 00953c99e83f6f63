// Parameters as ranks of a lane hold them, cut in every way that the models cut theirs, on grids of dp x cp
// and tp.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collective/process_group.hpp"
#include "comm/communicator.hpp"
#include "parallel/parameters.hpp"
#include "parallel/peers.hpp"

namespace maestro::test {

/// Ranks [data][tp], tp fastest. `keys`: so many tp ranks hold the same key heads.
struct Grid {
    int data = 1, tp = 1, keys = 1;
    int ranks() const { return data * tp; }
};

inline std::vector<Grid> grids_of(int ranks) {
    std::vector<Grid> grids;
    for (int tp = 1; tp <= ranks; ++tp)
        for (int keys = 1; ranks % tp == 0 && keys <= tp; ++keys)
            if (tp % keys == 0) grids.push_back({ranks / tp, tp, keys});
    return grids;
}

inline backend::Backend& cpu() {
    static const std::unique_ptr<backend::Backend> backend = backend::make_cpu(1);
    return *backend;
}

/// Collective over the grid's ranks.
inline parallel::Peers peers_of(const comm::Communicator& ranks, const Grid& grid) {
    const int rank = ranks.rank();
    parallel::Peers peers = parallel::no_peers();
    peers.degrees = {1, grid.tp};
    peers.tensor = collective::make_process_group(ranks.split(rank / grid.tp, rank, "tensor"), cpu());
    peers.keys = collective::make_process_group(ranks.split(rank / grid.keys, rank, "keys"), cpu());
    return peers;
}

/// Collective over the grid's ranks: those that hold the same shards.
inline std::unique_ptr<collective::ProcessGroup> data_of(const comm::Communicator& ranks, const Grid& grid) {
    return collective::make_process_group(ranks.split(ranks.rank() % grid.tp, ranks.rank(), "data"), cpu());
}

/// What tp rank `tp` holds: a matrix cut into columns, two cut into rows, of which one has queries and, after
/// them, keys that several ranks hold, a matrix and a vector that all hold. `size` scales the cut ones.
inline void declare(parallel::ParameterStore& store, const Grid& grid, int tp, std::int64_t size,
                    bool trained = true) {
    using parallel::Init;
    store.declare("norm", {5}, Init::ones, trained);
    store.declare("output", {3, 5 * size}, Init::normal, trained, {{{0, 3}}, part_of(5 * size, tp, grid.tp)});
    store.declare("frozen", {4, 3}, Init::normal, false);
    store.declare("frozen-rows", {9, 2}, Init::normal, false, {{part_of(9, tp, grid.tp)}, {0, 2}});
    const Range queries = part_of(4 * size, tp, grid.tp),
                key = part_of(2 * size, tp / grid.keys, grid.tp / grid.keys);
    Shard qkv{.rows = {queries}, .columns = {0, 2}};
    if (key.size() > 0) qkv.rows.push_back({4 * size + key.begin, 4 * size + key.end});
    const Range common{2 * queries.size(), qkv.size()};
    store.declare("qkv", {6 * size, 2}, Init::normal, trained, std::move(qkv), parallel::Sharing::keys,
                  common);
    store.declare("head", {7, 2}, Init::normal, trained, {{part_of(7, tp, grid.tp)}, {0, 2}});
    store.declare("table", {7, 11}, Init::normal, trained);
    store.allocate(1);
}

}  // namespace maestro::test
