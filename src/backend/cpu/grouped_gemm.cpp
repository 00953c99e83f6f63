#include "backend/cpu/grouped_gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <exception>

#include "backend/cpu/cpu_gemm.hpp"

namespace maestro::backend {

namespace {

/// A tile has at most this share of the whole work, so that threads are balanced even if one group has all
/// rows. With dozens of groups of similar size, each of them is one tile.
constexpr std::int64_t kMinTiles = 32;
constexpr std::int64_t kMinWork = 1 << 20;  ///< multiply-adds of a tile: it takes some tens of microseconds
/// A side of a tile: oneDNN packs both matrices of a GEMM, which costs a tenth of its time at this size.
constexpr std::int64_t kMinSide = 128;
constexpr std::int64_t kSideUnit = 64;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

std::int64_t work_of(const Backend::Gemm& g) {
    return g.m * g.n * g.k;
}

const void* advance(const void* base, std::int64_t elements, DType type) {
    return static_cast<const std::byte*>(base) + static_cast<std::size_t>(elements) * size_of(type);
}

/// The rows [row, row + m) and columns [column, column + n) of the result of `g`.
Backend::Gemm tile_of(Backend::Gemm g, std::int64_t row, std::int64_t m, std::int64_t column,
                      std::int64_t n) {
    g.a = advance(g.a, g.transpose_a ? row : row * g.lda, g.in);
    g.b = advance(g.b, g.transpose_b ? column * g.ldb : column, g.in);
    g.y = const_cast<void*>(advance(g.y, row * g.ldy + column, g.out));
    g.m = m;
    g.n = n;
    return g;
}

/// The length of a part when `length` is divided into at most `parts` parts.
std::int64_t part_of(std::int64_t length, std::int64_t parts) {
    return ceil_div(ceil_div(length, parts), kSideUnit) * kSideUnit;
}

/// `bf16_gemm` is made when it is first used.
void compute(const Backend::Gemm& tile, std::unique_ptr<Bf16Gemm>& bf16_gemm) {
    if (tile.in != DType::bf16) return cpu_gemm(tile);
    if (!bf16_gemm) bf16_gemm = make_bf16_native(Bf16Use::groups);
    if (!bf16_gemm) bf16_gemm = make_bf16_panels();
    bf16_gemm->run(tile);
}

}  // namespace

std::vector<Backend::Gemm> tiles_of(const Backend::GroupedGemm& g) {
    const std::int64_t limit = std::max(ceil_div(g.begin.back() * g.inputs * g.outputs, kMinTiles), kMinWork);
    std::vector<Backend::Gemm> tiles;
    for (std::size_t group = 0; group < g.groups(); ++group) {
        const Backend::Gemm whole = g.of_group(group);
        if (work_of(whole) == 0) continue;
        // Rows are divided first, because the columns of a tile are those of all of its group's weights.
        const std::int64_t parts = ceil_div(work_of(whole), limit);
        const std::int64_t of_rows = std::clamp<std::int64_t>(whole.m / kMinSide, 1, parts);
        const std::int64_t of_columns =
            std::clamp<std::int64_t>(whole.n / kMinSide, 1, ceil_div(parts, of_rows));
        const std::int64_t m = part_of(whole.m, of_rows), n = part_of(whole.n, of_columns);
        for (std::int64_t row = 0; row < whole.m; row += m)
            for (std::int64_t column = 0; column < whole.n; column += n)
                tiles.push_back(
                    tile_of(whole, row, std::min(m, whole.m - row), column, std::min(n, whole.n - column)));
    }
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const auto& one, const auto& other) { return work_of(one) > work_of(other); });
    return tiles;
}

void CpuGroupedGemm::run(const Backend::GroupedGemm& g) {
    const std::vector<Backend::Gemm> tiles = tiles_of(g);
    std::vector<std::exception_ptr> errors(tiles.size());  // an exception must not leave a parallel region
#pragma omp parallel num_threads(threads_)
    {
        omp_set_num_threads(1);  // in regions within this one, and for oneDNN's choice of a kernel
        auto& bf16_gemm = bf16_[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic)
        for (std::size_t i = 0; i < tiles.size(); ++i) {
            try {
                compute(tiles[i], bf16_gemm);
            } catch (...) {
                errors[i] = std::current_exception();
            }
        }
    }
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace maestro::backend
