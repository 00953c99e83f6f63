// ops/adamw.hpp on a GPU.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// What every element of an update is multiplied by, and the like.
struct AdamWFactors {
    float beta1, rest1;  ///< rest: 1 - beta
    float beta2, rest2;
    float rate;  ///< corrected for the first moment's bias
    float root;  ///< corrects the root of the second one
    float eps, scale;
    float keep;  ///< what weight decay leaves of a weight
};

/// Elements next to each other that are updated alike.
struct UpdateChunk {
    std::int64_t begin;
    std::int32_t size, decays;  ///< decays: 0 or 1
};

/// Arrays f32[n], of which the elements in `chunks` are updated, in one launch.
void adamw(Stream stream, const Array& weights, const Array& gradient, const Array& first,
           const Array& second, const Array& chunks, const AdamWFactors& factors);

/// Elements whose squares are summed by themselves, of so many; the partial sums are at most 4096.
inline std::int64_t square_chunk(std::int64_t elements) {
    constexpr std::int64_t kLeast = std::int64_t{1} << 13, kMost = 4096;
    const std::int64_t least = (elements + kLeast - 1) / kLeast;
    return kLeast * ((least + kMost - 1) / kMost);
}
inline std::int64_t square_chunks(std::int64_t elements) {
    return elements == 0 ? 0 : (elements - 1) / square_chunk(elements) + 1;
}

/// partial: f64[square_chunks(values.size())].
void add_squares(Stream stream, const Array& values, const Array& sum, const Array& partial);

}  // namespace maestro::kernels
