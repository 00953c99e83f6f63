#include "kernels/patchify.hpp"

#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

struct Picture {
    std::int64_t height, width, channels, patch, merge;
    std::int64_t across;  ///< blocks of merge x merge patches in a row of the picture
};

/// Iterates over the elements of patches, one patch after another.
template <PatchOrder Order>
struct PatchIterator {
    std::int64_t top, left;  ///< pixel at which the patch begins
    std::int64_t y, x, c;    ///< element within the patch
    int frame = 0;           ///< of frames_of(Order)

    __device__ PatchIterator(const Picture& p, std::int64_t patch, std::int64_t element) {
        begin_patch(p, patch);
        if constexpr (Order == PatchOrder::pixels) {
            const std::int64_t pixel = element / p.channels;
            c = element % p.channels;
            y = pixel / p.patch;
            x = pixel % p.patch;
        } else {
            const std::int64_t line = element / p.patch, image = line / p.patch;
            x = element % p.patch;
            y = line % p.patch;
            frame = static_cast<int>(image % frames_of(Order));
            c = image / frames_of(Order);
        }
    }
    __device__ void begin_patch(const Picture& p, std::int64_t patch) {
        const std::int64_t block = patch / (p.merge * p.merge), within = patch % (p.merge * p.merge);
        top = (block / p.across * p.merge + within / p.merge) * p.patch;
        left = (block % p.across * p.merge + within % p.merge) * p.patch;
        y = x = c = frame = 0;
    }
    /// Offset of the element in the picture. Pixels beyond the picture repeat those of its edge.
    __device__ std::int64_t offset(const Picture& p) const {
        const std::int64_t row = top + y < p.height ? top + y : p.height - 1;
        const std::int64_t column = left + x < p.width ? left + x : p.width - 1;
        return (row * p.width + column) * p.channels + c;
    }
    /// Moves to the next element. Returns false at the end of the patch.
    __device__ bool next(const Picture& p) {
        if constexpr (Order == PatchOrder::pixels) {
            if (++c < p.channels) return true;
            c = 0;
            if (++x < p.patch) return true;
            x = 0;
            return ++y < p.patch;
        } else {
            if (++x < p.patch) return true;
            x = 0;
            if (++y < p.patch) return true;
            y = 0;
            if (++frame < frames_of(Order)) return true;
            frame = 0;
            return ++c < p.channels;
        }
    }
};

/// A thread fills N contiguous elements, which may belong to two patches.
template <class T, int N, PatchOrder Order>
__global__ void __launch_bounds__(256) fill(const std::uint8_t* pixels, T* patches, Picture picture,
                                            std::int64_t first, std::int64_t columns, std::int64_t size) {
    using A = Accumulate<T>;
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (at >= size) return;
    std::int64_t patch = first + at / columns;
    PatchIterator<Order> it(picture, patch, at % columns);
    A value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        value[i] = static_cast<A>(pixels[it.offset(picture)]) / A(127.5) - A(1);
        if (!it.next(picture)) it.begin_patch(picture, ++patch);
    }
    store<T, N>(value, patches + at);
}

}  // namespace

void patchify(Stream stream, const Array& pixels, std::int64_t height, std::int64_t width,
              std::int64_t channels, std::int64_t patch, std::int64_t merge, PatchOrder order,
              std::int64_t first, const Array& patches) {
    const Picture picture{height, width, channels, patch, merge, divide_up(width, patch * merge)};
    by_type(patches.dtype, [&]<class T>(T) {
        by_vector_size<T>(
            [&]<int N>() {
                const auto kernel = order == PatchOrder::pixels ? fill<T, N, PatchOrder::pixels>
                                                                : fill<T, N, PatchOrder::film>;
                launch(kernel, divide_up(patches.size(), 256 * N), 256, 0, stream, pixels.as<std::uint8_t>(),
                       patches.as<T>(), picture, first, patches.columns, patches.size());
            },
            patches.size(), patches.as<T>());
    });
}

}  // namespace maestro::kernels
