// One AdamW update (Loshchilov and Hutter, ICLR 2019) and the norm that clipping needs.
#pragma once

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
    double weight_decay;    ///< decoupled: weights that decay lose learning_rate * weight_decay of themselves
    std::int64_t step;      ///< from 1, for the bias correction
    double gradient_scale;  ///< of clipping
};

/// Elements that one update takes.
struct UpdateRange {
    Range range;
    bool decays;  ///< or keeps clear of weight decay
};
/// For adamw(): to be copied to a tensor u8[n, sizeof(kernels::UpdateChunk)] of the device.
std::vector<kernels::UpdateChunk> update_chunks(std::span<const UpdateRange> elements);

/// Weights, gradient and moments: f32[n], of which the elements in `chunks` are updated, however many
/// parameters they belong to, in one go.
void adamw(backend::Backend& b, const Tensor& weights, const Tensor& gradient, const Tensor& first,
           const Tensor& second, const Tensor& chunks, const AdamW& settings);
/// sum[1] (f64) += the sum of squares, the same whatever the number of threads. Scratch: up to 32 KiB on a
/// GPU.
void add_squares(backend::Backend& b, const Tensor& t, const Tensor& sum, backend::Arena& scratch);

}  // namespace maestro::ops
