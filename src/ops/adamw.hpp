// The AdamW update (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019) and the
// squared norm that gradient clipping needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "base/shard.hpp"
#include "kernels/adamw.hpp"

namespace maestro::ops {

struct AdamW {
    double learning_rate;
    double beta1, beta2;
    double eps;
    double
        weight_decay;   ///< decoupled: a weight that decays is multiplied by 1 - learning_rate * weight_decay
    std::int64_t step;  ///< counted from 1, for the bias correction
    double gradient_scale;  ///< factor of gradient clipping
};

/// Elements of the flat arrays that an update changes.
struct UpdateRange {
    Range range;
    bool decays;  ///< whether weight decay applies to them
};
/// Cuts the ranges into chunks of bounded size. The caller copies them to the device as a tensor
/// u8[n, sizeof(kernels::UpdateChunk)], which adamw() takes.
std::vector<kernels::UpdateChunk> update_chunks(std::span<const UpdateRange> elements);

/// Updates weights[n], first[n] and second[n], the moments, by gradient[n], all f32 or,
/// on the CPU, f64, at the elements in `chunks`. One launch updates all parameters.
void adamw(backend::Backend& b, const Tensor& weights, const Tensor& gradient, const Tensor& first,
           const Tensor& second, const Tensor& chunks, const AdamW& settings);
/// sum[1] (f64) += the sum of squares of t[n]. The result does not depend on the number of threads. Takes
/// squares_scratch() bytes of scratch memory on a GPU, 32 KiB at most.
void add_squares(backend::Backend& b, const Tensor& t, const Tensor& sum, backend::Arena& scratch);

std::size_t squares_scratch(std::int64_t elements);

}  // namespace maestro::ops
