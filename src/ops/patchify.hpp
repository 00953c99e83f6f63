// Cuts pictures of any size into rows of patches. A picture is padded at its right and lower edge to
// multiples of patch * merge pixels by repeating its last pixels.
//
// Patches are ordered in blocks of merge x merge, the blocks row by row and the patches row by row within
// each, so that merge^2 consecutive rows become one token (Qwen2-VL's patch merger).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.hpp"
#include "spec/patch_order.hpp"

namespace maestro::ops {

/// Returns the number of patches of a picture of height x width pixels, after padding.
std::int64_t picture_patches(std::int64_t height, std::int64_t width, std::int64_t patch, std::int64_t merge);
/// Appends the patch row and patch column of every patch of a picture to y and x, in the order of patches.
void patch_positions(std::int64_t height, std::int64_t width, std::int64_t patch, std::int64_t merge,
                     std::vector<std::int32_t>& y, std::vector<std::int32_t>& x);
/// patches[n, frames_of(order) * patch * patch * channels] = value / 127.5 - 1 for the n patches from `first`
/// on. `pixels` are u8[height, width, channels]. Throws Error(broken_invariant) where the picture does not
/// have these patches.
void patchify(backend::Backend& b, const Tensor& pixels, std::int64_t height, std::int64_t width,
              std::int64_t channels, std::int64_t patch, std::int64_t merge, PatchOrder order,
              std::int64_t first, const Tensor& patches);

}  // namespace maestro::ops
