// Pictures of any size as rows of patches.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.hpp"

namespace maestro::ops {

/// Patches of a picture of height x width pixels after padding to multiples of patch * merge.
std::int64_t picture_patches(std::int64_t height, std::int64_t width, std::int64_t patch, std::int64_t merge);
/// Appends the row and column of every patch, in patchify's order.
void patch_positions(std::int64_t height, std::int64_t width, std::int64_t patch, std::int64_t merge,
                     std::vector<std::int32_t>& y, std::vector<std::int32_t>& x);
/// patches[n, patch * patch * channels] of value / 127.5 - 1, from pixels (u8, height x width x channels):
/// the n patches from `first` on. The picture is extended to the right and below by its edge pixels. Order:
/// blocks of merge x merge patches row by row, within a block row by row, so that merge^2 consecutive rows
/// become one merged token.
void patchify(backend::Backend& b, const Tensor& pixels, std::int64_t height, std::int64_t width,
              std::int64_t channels, std::int64_t patch, std::int64_t merge, std::int64_t first,
              const Tensor& patches);

}  // namespace maestro::ops
