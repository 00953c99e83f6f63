// Parameters as ranks of a lane hold them, cut in every way that the models cut theirs, on grids of dp x cp
// and tp.
#pragma once

#include <memory>
#include <vector>

#include "collective/process_group.hpp"
#include "comm/communicator.hpp"
#include "parallel/mesh.hpp"
#include "parallel/parameter_store.hpp"

namespace maestro::test {

/// Ranks [data][tp], tp fastest. `keys`: how many tp ranks hold the same key heads.
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

inline parallel::MeshShape shape_of(const Grid& grid) {
    return {.dp = grid.data, .degrees = {1, grid.tp}, .kv_heads = grid.tp / grid.keys};
}

/// Collective over the grid's ranks.
inline parallel::Mesh mesh_of(const comm::Communicator& ranks, const Grid& grid) {
    return parallel::make_mesh(ranks, cpu(), shape_of(grid), "language");
}

/// Returns those of the held elements of a parameter that this rank updates; none where it is frozen.
inline Range updated(const parallel::ParameterStore& store, const parallel::Parameter& p) {
    return p.trainable ? store.group_of(p).shard_of(p) : Range{};
}

/// Declares the parameters of tp rank `tp`: a matrix with split columns, two with split rows, of which one
/// has queries and after them keys that several ranks hold, and a matrix and a vector that all ranks hold.
/// `size` scales the split ones. With `groups` they are in several groups. In bf16 a vector and a matrix with
/// split rows are kept precise.
inline void declare(parallel::ParameterStore& store, const Grid& grid, int tp, std::int64_t size,
                    bool trained = true, bool groups = false) {
    using parallel::Init;
    const auto keep = [&](parallel::Parameter& p) {
        if (store.compute() == DType::bf16) store.keep_precise(p);
    };
    keep(store.declare("norm", {5}, Init::ones, trained));
    store.declare("output", {3, 5 * size}, Init::normal, trained, {{{0, 3}}}, part_of(5 * size, tp, grid.tp));
    if (groups) store.begin_layer();
    store.declare("frozen", {4, 3}, Init::normal, false);
    keep(store.declare("frozen-rows", {9, 2}, Init::normal, false, {{part_of(9, tp, grid.tp)}}, {0, 2}));
    const Range queries = part_of(4 * size, tp, grid.tp),
                key = part_of(2 * size, tp / grid.keys, grid.tp / grid.keys);
    std::vector<parallel::ParameterRows> qkv{{queries}};
    if (key.size() > 0) qkv.push_back({{4 * size + key.begin, 4 * size + key.end}, parallel::Axis::kv});
    store.declare("qkv", {6 * size, 2}, Init::normal, trained, qkv, {0, 2});
    if (groups) store.begin_layer();
    store.declare("head", {7, 2}, Init::normal, trained, {{part_of(7, tp, grid.tp)}}, {0, 2});
    store.declare("table", {7, 11}, Init::normal, trained);
    store.allocate(1, 1);
    Pulse quiet;
    store.initialize(quiet);
}

}  // namespace maestro::test
