// GPU implementation of ops/cross_entropy.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/loss_steps.hpp"

namespace maestro::kernels {

/// Runs the given steps for n rows. first_token: the token of the first column. These arrays, of the type
/// that logits are computed in (f32 for bf16), carry state from one step to the next:
///   global_max[n]  each row's largest logit; the caller reduces it over ranks after step 0
///   local_max[n]   the same over this rank's columns; it stays
///   sums[2, n]     sums of exponentials, and the targets' logits
/// The last step replaces the logits with their gradient and writes losses[n] (f64).
void cross_entropy(Stream stream, LossSteps steps, const Array& logits, const Array& targets,
                   const Array& weights, double scale, std::int64_t first_token, const Array& global_max,
                   const Array& local_max, const Array& sums, const Array& losses);
/// sums[0] += the losses, added in the order of rows. Where there are sums[1 + n], losses[n, R] has n terms,
/// and sums[1 + t] += those of term t.
void sum_losses(Stream stream, const Array& losses, const Array& sums);
/// ids[r], values[r] = the column and the value of the largest logit of row r.
void argmax_rows(Stream stream, const Array& logits, const Array& ids, const Array& values);

}  // namespace maestro::kernels
