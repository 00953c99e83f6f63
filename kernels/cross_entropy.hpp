// ops/cross_entropy.hpp on a GPU.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/loss_steps.hpp"

namespace maestro::kernels {

/// first_token: the first column's. From step to step are kept, of the logits' type, tops[n], which become
/// those over all ranks, own_tops[n], which stay, and sums[2, n] of exponentials and of targets' logits. The
/// last step writes losses.
void cross_entropy(Stream stream, LossSteps steps, const Array& logits, const Array& targets,
                   const Array& weights, double scale, std::int64_t first_token, const Array& tops,
                   const Array& own_tops, const Array& sums, const Array& losses);
/// sum[1] += the losses, in their order.
void add_up(Stream stream, const Array& losses, const Array& sum);
void argmax_rows(Stream stream, const Array& logits, const Array& ids, const Array& values);

}  // namespace maestro::kernels
