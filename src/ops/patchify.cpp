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

/// Calls body(row, column, channel) for every value of a patch.
template <class Body>
void for_each_value(std::int64_t patch, std::int64_t channels, PatchOrder order, Body&& body) {
    if (order == PatchOrder::pixels) {
        for (std::int64_t y = 0; y < patch; ++y)
            for (std::int64_t x = 0; x < patch; ++x)
                for (std::int64_t c = 0; c < channels; ++c) body(y, x, c);
        return;
    }
    for (std::int64_t c = 0; c < channels; ++c)
        for (int frame = 0; frame < frames_of(order); ++frame)
            for (std::int64_t y = 0; y < patch; ++y)
                for (std::int64_t x = 0; x < patch; ++x) body(y, x, c);
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
              std::int64_t channels, std::int64_t patch, std::int64_t merge, PatchOrder order,
              std::int64_t first, const Tensor& patches) {
    MAESTRO_CHECK(first >= 0 && first + patches.dim(0) <= picture_patches(height, width, patch, merge) &&
                      patches.columns() == frames_of(order) * patch * patch * channels &&
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
                    const auto put = [&](std::int64_t dy, std::int64_t dx, std::int64_t c) {
                        const std::int64_t y = std::min(row * patch + dy, height - 1),
                                           x = std::min(column * patch + dx, width - 1);
                        *out++ = static_cast<T>(
                            static_cast<A>(values[(y * width + x) * channels + c]) / A(127.5) - A(1));
                    };
                    for_each_value(patch, channels, order, put);
                });
            });
        },
        [&](Stream stream) {
            kernels::patchify(stream, pixels, height, width, channels, patch, merge, order, first, patches);
        });
}

}  // namespace maestro::ops
