#include "families/piece.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace maestro::families {

namespace {

/// Elements of a parameter [rows, columns] that a shard has: of each of `rows` the same columns, with
/// `local_step` elements of the shard from one row to the next.
struct Block {
    std::int64_t row = 0, rows = 0, column = 0, columns = 0, local = 0, local_step = 0;

    bool takes(const Block& next) const {
        return next.column == column && next.columns == columns && next.row == row + rows &&
               (rows == 1 || next.local == local + rows * local_step) && next.local > local;
    }
};

/// The blocks of these elements of a parameter with so many columns.
std::vector<Block> blocks_of(std::span<const Extent> extents, std::int64_t columns) {
    std::vector<Block> blocks;
    for (const Extent& e : extents)
        for (std::int64_t at = 0; at < e.count;) {
            const std::int64_t row = (e.logical + at) / columns, column = (e.logical + at) % columns,
                               count = std::min(e.count - at, columns - column);
            const Block next{row, 1, column, count, e.local + at, 0};
            if (!blocks.empty() && blocks.back().takes(next)) {
                Block& block = blocks.back();
                block.local_step = next.local - (block.local + (block.rows - 1) * block.local_step);
                ++block.rows;
            } else {
                blocks.push_back(next);
            }
            at += count;
        }
    return blocks;
}

/// Adds the elements of the tensor for rows of the block that lie in one run, whose first row is `first_row`
/// of the parameter.
void add_rows(const Block& block, const View::Run& run, std::int64_t first_row, const View& view,
              std::vector<Extent>& extents) {
    const std::int64_t begin = std::max(block.row, first_row),
                       rows = std::min(block.row + block.rows, first_row + run.rows) - begin;
    if (rows <= 0) return;
    const std::int64_t tensor = run.first + (begin - first_row) * run.row_stride +
                                block.column * view.column_stride,
                       local = block.local + (begin - block.row) * block.local_step;
    if (run.row_stride == 1) {
        // Consecutive elements of the tensor are in consecutive rows.
        for (std::int64_t c = 0; c < block.columns; ++c)
            extents.push_back({tensor + c * view.column_stride, local + c, rows,
                               std::max<std::int64_t>(block.local_step, 1)});
        return;
    }
    for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t from = tensor + r * run.row_stride, to = local + r * block.local_step;
        if (view.column_stride == 1) {
            extents.push_back({from, to, block.columns});
            continue;
        }
        for (std::int64_t c = 0; c < block.columns; ++c)
            extents.push_back({from + c * view.column_stride, to + c, 1});
    }
}

std::vector<Extent> extents_in(const View& view, std::span<const Extent> extents) {
    std::vector<Extent> in_tensor;
    for (const Block& block : blocks_of(extents, view.columns)) {
        std::int64_t row = 0;
        for (const View::Run& run : view.runs) {
            add_rows(block, run, row, view, in_tensor);
            row += run.rows;
        }
    }
    return in_tensor;
}

}  // namespace

View transposed(std::int64_t matrices, std::int64_t rows, std::int64_t columns) {
    View view{.columns = columns, .column_stride = rows};
    for (std::int64_t i = 0; i < matrices; ++i) view.runs.push_back({rows, i * rows * columns, 1});
    return view;
}

std::int64_t Piece::elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t Piece::together() const {
    return view.runs.empty() || view.column_stride == 1 ? 1 : view.runs.front().rows * view.columns;
}

std::vector<std::vector<Extent>> extents_by_piece(std::span<const Piece> pieces,
                                                  std::span<const Extent> extents) {
    std::vector<std::int64_t> begins{0};  // the first element of each piece in the parameter, and the end
    for (const Piece& piece : pieces) begins.push_back(begins.back() + piece.elements());
    std::vector<std::vector<Extent>> by_piece(pieces.size());
    for (const Extent& e : extents) {
        const auto after = std::upper_bound(begins.begin(), begins.end(), e.logical);
        auto piece = static_cast<std::size_t>(after - begins.begin()) - 1;
        for (std::int64_t at = e.logical; at < e.logical + e.count && piece < pieces.size(); ++piece) {
            const std::int64_t end = std::min(e.logical + e.count, begins[piece + 1]);
            if (at < end) by_piece[piece].push_back({at - begins[piece], e.local + at - e.logical, end - at});
            at = end;
        }
    }
    for (std::size_t i = 0; i < pieces.size(); ++i)
        if (!pieces[i].view.runs.empty()) by_piece[i] = extents_in(pieces[i].view, by_piece[i]);
    return by_piece;
}

}  // namespace maestro::families
