// Pieces of a parameter: the tensors of a folder that hold its rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/shard.hpp"

namespace maestro::families {

/// Where a tensor has the rows of a parameter, if not one behind the other: element (r, c) of a run is
/// element first + r row_stride + c column_stride of the tensor.
struct View {
    /// Consecutive rows of the parameter.
    struct Run {
        std::int64_t rows = 0, first = 0, row_stride = 0;
        bool operator==(const Run&) const = default;
    };
    std::vector<Run> runs = {};  ///< in the order of the rows; empty: the elements in their order
    std::int64_t columns = 0;    ///< of the parameter
    std::int64_t column_stride = 1;
    bool operator==(const View&) const = default;
};
/// The view of a tensor [matrices, columns, rows] as the rows of all matrices [rows, columns].
View transposed(std::int64_t matrices, std::int64_t rows, std::int64_t columns);

/// Rows of a parameter and the tensor of a folder that consists of them. The pieces of a parameter cover its
/// rows in order.
struct Piece {
    std::string tensor;               ///< "model.layers.0.self_attn.q_proj.weight"
    std::vector<std::int64_t> shape;  ///< of the tensor
    View view = {};

    std::int64_t elements() const;
    /// Consecutive elements of the parameter that are faster to read or write together, because the tensor
    /// has them in another order: those of a transposed matrix; else 1.
    std::int64_t together() const;
    bool operator==(const Piece&) const = default;
};

/// Divides elements of a parameter among its pieces, of which a layer with experts has hundreds. Returns, by
/// piece, extents whose `logical` counts the elements of the piece's tensor; `local` remains as it is, and
/// `stride` is that of the elements in the shard.
std::vector<std::vector<Extent>> extents_by_piece(std::span<const Piece> pieces,
                                                  std::span<const Extent> extents);

}  // namespace maestro::families
