// GPU implementation of ops/patchify.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "spec/patch_order.hpp"

namespace maestro::kernels {

/// Patches from number `first` on. Pixel values become [-1, 1].
void patchify(Stream stream, const Array& pixels, std::int64_t height, std::int64_t width,
              std::int64_t channels, std::int64_t patch, std::int64_t merge, PatchOrder order,
              std::int64_t first, const Array& patches);

}  // namespace maestro::kernels
