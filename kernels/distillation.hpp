// GPU implementation of ops/distillation.hpp.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/loss_steps.hpp"

namespace maestro::kernels {

/// The weights of cross entropy and of the divergence in the loss, and the temperature of the latter.
struct Mixture {
    double hard, soft, temperature;
};

/// Runs the given steps for n rows. first_token: the token of the first column. These arrays, of the type
/// that logits are computed in (f32 for bf16), carry state from one step to the next:
///   global_max[2, n]  largest logits of student and teacher; reduced over ranks by the caller after step 0
///   local_max[2, n]   the same over this rank's columns; they stay
///   sums[5, n]        sums of exponentials, and the targets' logits
/// The last step replaces the student's logits with their gradient and writes losses[2, n] (f64): the hard
/// losses, then the soft ones.
void distillation(Stream stream, LossSteps steps, const Array& student, const Array& teacher,
                  const Array& targets, const Array& weights, const Mixture& mixture, double scale,
                  std::int64_t first_token, const Array& global_max, const Array& local_max,
                  const Array& sums, const Array& losses);

}  // namespace maestro::kernels
