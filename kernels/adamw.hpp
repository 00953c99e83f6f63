// GPU implementation of ops/adamw.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

/// Factors that all elements of an update share, in the type T of the elements.
template <class T>
struct AdamWFactorsOf {
    T beta1, one_minus_beta1;
    T beta2, one_minus_beta2;
    T step_size;        ///< learning rate over the bias correction of the first moment
    T root_correction;  ///< bias correction of the second moment's root
    T eps;
    T scale;  ///< of the gradient
    T decay;  ///< factor of a weight under weight decay: 1 - learning rate * weight decay
};
using AdamWFactors = AdamWFactorsOf<float>;

/// A range of elements with the same weight decay.
struct UpdateChunk {
    std::int64_t begin;
    std::int32_t size, decays;  ///< decays: whether weight decay applies, 0 or 1
};

/// Updates the elements in `chunks` (UpdateChunk[]) of the arrays f32[n], in one launch.
void adamw(Stream stream, const Array& weights, const Array& gradient, const Array& first,
           const Array& second, const Array& chunks, const AdamWFactors& factors);

/// Elements per partial sum of add_squares(). There are at most 4096 partial sums.
inline std::int64_t square_chunk(std::int64_t elements) {
    constexpr std::int64_t kMinChunk = std::int64_t{1} << 13, kMaxChunks = 4096;
    const std::int64_t units = (elements + kMinChunk - 1) / kMinChunk;
    return kMinChunk * ((units + kMaxChunks - 1) / kMaxChunks);
}
inline std::int64_t square_chunks(std::int64_t elements) {
    return elements == 0 ? 0 : (elements - 1) / square_chunk(elements) + 1;
}

/// sum[1] += the sum of the squares of `values`, in f64. partial: scratch, f64[square_chunks(values.size())].
void add_squares(Stream stream, const Array& values, const Array& sum, const Array& partial);

}  // namespace maestro::kernels
