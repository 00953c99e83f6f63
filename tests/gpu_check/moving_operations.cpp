// Operations that copy rows and columns.
#include "ops/columns.hpp"
#include "ops/embedding.hpp"
#include "ops/patchify.hpp"
#include "ops/position_table.hpp"
#include "ops/rows.hpp"
#include "types.hpp"

namespace maestro::gpu_check {

namespace {

constexpr std::int64_t kPositions = 48 * 48;  ///< rows of a table of positions

std::vector<Operation> tables() {
    return {
        {"embedding", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor ids = w.list(w.indices(s.rows, s.vocabulary)),
                          table = w.random(t, {s.vocabulary, s.columns}),
                          y = w.result(t, {s.rows, s.columns});
             return [=, &w] { ops::embedding(w.b, ids, table, y); };
         }},
        {"embedding_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor ids = w.list(w.indices(s.rows, s.vocabulary)),
                          dy = w.random(t, {s.rows, s.columns}),
                          dtable = w.sum(sums_of(t), {s.vocabulary, s.columns});
             return [=, &w] { ops::embedding_backward(w.b, ids, dy, dtable, w.scratch); };
         }},
        {"position_embedding", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor index = w.list(w.indices(4 * s.rows, kPositions)),
                          weight = w.random(DType::f64, {4 * s.rows}),
                          table = w.random(t, {kPositions, s.columns}), x = w.sum(t, {s.rows, s.columns});
             return [=, &w] { ops::position_embedding(w.b, index, weight, table, x); };
         }},
        {"position_embedding_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor index = w.list(w.indices(4 * s.rows, kPositions)),
                          weight = w.random(DType::f64, {4 * s.rows}), dy = w.random(t, {s.rows, s.columns}),
                          dtable = w.sum(sums_of(t), {kPositions, s.columns});
             return [=, &w] { ops::position_embedding_backward(w.b, index, weight, dy, dtable, w.scratch); };
         }},
        {"scatter_rows", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor index = w.list(w.indices(s.rows, s.rows, true)),
                          x = w.random(t, {s.rows, s.columns}), y = w.result(t, {s.rows, s.columns});
             return [=, &w] { ops::scatter_rows(w.b, x, index, y); };
         }},
        {"gather_rows", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor index = w.list(w.indices(s.rows, s.rows)), x = w.random(t, {s.rows, s.columns}),
                          y = w.result(t, {s.rows, s.columns});
             return [=, &w] { ops::gather_rows(w.b, x, index, y); };
         }},
    };
}

std::vector<std::uint8_t> some_pixels(std::int64_t count) {
    std::vector<std::uint8_t> list(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < list.size(); ++i)
        list[i] =
            static_cast<std::uint8_t>((i * 0x9E3779B1u) >> 24);  // a multiplicative hash: no visible pattern
    return list;
}

Run patchify(Workbench& w, DType t, const Sizes& s, PatchOrder order) {
    constexpr std::int64_t kPatch = 14, kMerge = 2, kChannels = 3;
    const std::int64_t height = s.rows, width = s.columns / 4;
    const Tensor pixels = w.list(some_pixels(height * width * kChannels)),
                 patches = w.result(t, {ops::picture_patches(height, width, kPatch, kMerge),
                                        frames_of(order) * kPatch * kPatch * kChannels});
    return
        [=, &w] { ops::patchify(w.b, pixels, height, width, kChannels, kPatch, kMerge, order, 0, patches); };
}

std::vector<Operation> blocks() {
    return {
        {"copy_columns", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, 2 * s.columns}), y = w.sum(t, {s.rows, s.columns + 8});
             return [=, &w] { ops::copy_columns(w.b, {x, s.columns}, {y, 8}, s.columns); };
         }},
        {"copy_columns, added to rows", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor places = w.list(w.indices(s.rows, s.rows, true)),
                          x = w.random(t, {s.rows, 2 * s.columns}), y = w.sum(t, {s.rows, s.columns});
             return [=, &w] { ops::copy_columns(w.b, {x, s.columns}, {y, 0, places}, s.columns, true); };
         }},
        {"patchify", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) { return patchify(w, t, s, PatchOrder::pixels); }},
        {"patchify, film", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) { return patchify(w, t, s, PatchOrder::film); }},
    };
}

}  // namespace

std::vector<Operation> moving_operations() {
    return concatenate({tables(), blocks()});
}

}  // namespace maestro::gpu_check
