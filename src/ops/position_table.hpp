// A learned position embedding for pictures of any size, as in Qwen3-VL's vision tower: a table for a grid of
// side x side patches, interpolated bilinearly to a picture's grid so that their corners coincide (PyTorch's
// interpolate(mode="bilinear", align_corners=True)). Shape letters: T patches, S rows of the table (side^2),
// C channels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::ops {

/// Row y and column x of a patch in a picture of height x width patches.
struct GridPosition {
    std::int32_t y, x, height, width;
};

/// The rows of the table between which patches lie, and their weights: four of each for a patch, above left,
/// above right, below left and below right. The weights of a patch add up to 1. At the last row or column of
/// the table, where nothing follows, the last one stands twice, once with weight 0.
struct InterpolatedRows {
    std::vector<std::int32_t> index;
    std::vector<double> weight;
};

/// The patch (y, x) stands at y (side - 1) / (height - 1) and x (side - 1) / (width - 1) of the table, and at
/// 0 along an axis of one patch. Throws Error(broken_invariant) for positions outside of their grid.
InterpolatedRows interpolate_rows(std::span<const GridPosition> patches, std::int64_t side);

/// x[t] += the sum of weight[t, k] * table[index[t, k]] over k for x[T, C], table[S, C] of x's type, and
/// index (i32) and weight (f64) of 4 T elements, as of interpolate_rows(). The sum is taken in the order of k
/// in the accumulation type, to which weights are rounded, and the result is rounded once. On the CPU throws
/// Error(broken_invariant) for an index beyond the table.
void position_embedding(backend::Backend& b, const Tensor& index, const Tensor& weight, const Tensor& table,
                        const Tensor& x);
/// dtable[index[t, k]] += weight[t, k] * dy[t] for dy[T, C] and dtable[S, C] of its accumulation type, for
/// each row of the table in ascending order of t and k. The gradient of x is dy.
void position_embedding_backward(backend::Backend& b, const Tensor& index, const Tensor& weight,
                                 const Tensor& dy, const Tensor& dtable, backend::Arena& scratch);

}  // namespace maestro::ops
