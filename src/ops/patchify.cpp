#include "ops/patchify.hpp"

#include <algorithm>

#include "kernels/patchify.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

/// Calls body(patch row, patch column) for every patch of a picture, in the order of patches.
template <class Body>
void for_each_patch(std::int64_t height, std::int64_t width, std::int64_t patch, std::int64_t merge,
                    Body&& body) {
    const std::int64_t block = patch * merge;
    const std::int64_t rows = (height + block - 1) / block, columns = (width + block - 1) / block;
    for (std::int64_t by = 0; by < rows; ++by)
        for (std::int64_t bx = 0; bx < columns; ++bx)
            for (std::int64_t y = 0; y < merge; ++y)
                for (std::int64_t x = 0; x < merge; ++x) body(by * merge + y, bx * merge + x);
}

}  // namespace

std::int64_t picture_patches(std::int64_t height, std::int64_t width, std::int64_t patch,
                             std::int64_t merge) {
    const std::int64_t block = patch * merge;
    return (height + block - 1) / block * ((width + block - 1) / block) * merge * merge;
}

void patch_positions(std::int64_t height, std::int64_t width, std::int64_t patch, std::int64_t merge,
                     std::vector<std::int32_t>& y, std::vector<std::int32_t>& x) {
    for_each_patch(height, width, patch, merge, [&](std::int64_t row, std::int64_t column) {
        y.push_back(static_cast<std::int32_t>(row));
        x.push_back(static_cast<std::int32_t>(column));
    });
}

void patchify(backend::Backend& b, const Tensor& pixels, std::int64_t height, std::int64_t width,
              std::int64_t channels, std::int64_t patch, std::int64_t merge, std::int64_t first,
              const Tensor& patches) {
    MAESTRO_CHECK(first >= 0 && first + patches.dim(0) <= picture_patches(height, width, patch, merge) &&
                      patches.columns() == patch * patch * channels &&
                      pixels.size() == height * width * channels,
                  "patches {} of a {} x {} x {} picture", patches.describe(), height, width, channels);
    b.launch(
        {2.0 * static_cast<double>(patches.size()), static_cast<double>(patches.bytes())},
        [&] {
            by_type(patches.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const std::uint8_t* values = pixels.as<std::uint8_t>();
                T* out = patches.as<T>();
                std::int64_t index = -1;
                for_each_patch(height, width, patch, merge, [&](std::int64_t row, std::int64_t column) {
                    if (++index < first || index >= first + patches.dim(0)) return;
                    for (std::int64_t dy = 0; dy < patch; ++dy) {
                        const std::int64_t y = std::min(row * patch + dy, height - 1);
                        for (std::int64_t dx = 0; dx < patch; ++dx) {
                            const std::int64_t x = std::min(column * patch + dx, width - 1);
                            for (std::int64_t c = 0; c < channels; ++c)
                                *out++ = static_cast<T>(
                                    static_cast<A>(values[(y * width + x) * channels + c]) / A(127.5) - A(1));
                        }
                    }
                });
            });
        },
        [&](Stream stream) {
            kernels::patchify(stream, pixels, height, width, channels, patch, merge, first, patches);
        });
}

}  // namespace maestro::ops
